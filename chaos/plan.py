"""What goes wrong and when, drawn from a seed before anything runs: the same seed, duration and catalogue are the same plan."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

FIRST = 1.0
"""Seconds before the first fault."""
GAP = (1.0, 4.0)
"""Seconds between the beginnings of two faults."""
APART = 2.0
"""Seconds between two faults of one thing: a process must be there again before it is hit again."""


@dataclass(frozen=True)
class Injection:
    """One fault of a run. Times in seconds from the run's start; `end` equals `at` if nothing is to be undone."""

    number: int
    at: float
    end: float
    fault: str
    target: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Faults of one word may hit anything, and name it."""
        more = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        name = self.fault if " " in self.fault else f"{self.fault} {self.target}"
        return f"{name}{f' ({more})' if more else ''}"


@dataclass(frozen=True)
class Sketch:
    """What a fault draws: which thing it hits, for how long, and whatever else it needs."""

    target: str
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Drawable(Protocol):
    """A kind of fault, as the plan sees it. `weight`: how often it comes while every other comes once."""

    @property
    def draw(self) -> "Draw": ...

    @property
    def weight(self) -> int: ...


Draw = Callable[[random.Random, Sequence[str], float], Sketch]
"""From chance, the names of all processes, and the seconds it may last at most."""


def draw_plan(
    seed: int, seconds: float, processes: Sequence[str], catalogue: Mapping[str, Drawable]
) -> list[Injection]:
    """Every kind of fault comes by its weight before any comes again; two faults of one target never overlap."""
    chance = random.Random(seed)  # noqa: S311 - to be drawn again
    plan: list[Injection] = []
    free: dict[str, float] = {}
    bag: list[str] = []
    at = FIRST + chance.uniform(0.0, GAP[0])
    while at < seconds:
        if not bag:
            bag = [name for name in sorted(catalogue) for _ in range(catalogue[name].weight)]
            chance.shuffle(bag)
        name = bag.pop()
        sketch = catalogue[name].draw(chance, processes, seconds)
        if free.get(sketch.target, 0.0) <= at:
            end = min(at + sketch.seconds, seconds)
            plan.append(
                Injection(len(plan) + 1, round(at, 2), round(max(at, end), 2), name, sketch.target, sketch.facts)
            )
            free[sketch.target] = end + APART
        else:
            bag.insert(0, name)  # its target is still in trouble: later
        at += chance.uniform(*GAP)
    return plan
