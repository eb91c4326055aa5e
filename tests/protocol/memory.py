"""What the checker remembers, and what the protocol never reads."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.model import Violation
from tests.protocol.stage import Address, Stage


class By(NamedTuple):
    """Who made a call; for a worker, what it holds."""

    op: str
    address: Address = ("", "")
    generation: int = 0
    stay: int = 0
    used: bool = False
    """The attempt was really made: the call's outcome is not known, or the handler failed."""
    accept: bool = False


@dataclass
class Life:
    """What is known of one insertion, from publish to its one end."""

    number: int
    slot: float
    stay: int = 0
    """Which stay in the outbox: a replay begins another."""
    claim: int = 0
    spent: int = 0
    accepted: bool = False
    """Replayed with a possible duplicate accepted, not called since."""


@dataclass
class Story:
    """What is known of an id at one consumer, from the first publish until nobody remembers it."""

    allowed: float = 1
    effects: int = 0
    not_sent: str = ""


class Memory:
    """Stories and books: what took effect, what was claimed of it, and which insertion has ended how."""

    def __init__(self, stage: Stage, trace: list[str] | None) -> None:
        self.stage, self.trace = stage, trace
        self.stories: dict[Address, Story] = {}
        self.open: set[int] = set()
        self.ends: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self.stage.clock.now

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:>9.0f} s  {text}")

    def name(self, address: Address) -> str:
        return f"job{int(address[0][-4:], 16)} on {address[1]}"

    def effect(self, address: Address, count: int = 1) -> None:
        """The provider, or the product's table, has it."""
        story = self.stories[address]
        story.effects += count
        self.say(f"    {self.name(address)} took effect: number {story.effects}")
        if story.effects > story.allowed:
            raise Violation("sent twice", f"{self.name(address)}: {story.effects} times")
        if story.not_sent:
            raise Violation("sent after a verdict that denies it", f"{self.name(address)}: {story.not_sent}")

    def claims_not_sent(self, address: Address, verdict: str) -> None:
        story = self.stories[address]
        story.not_sent = verdict
        if story.effects:
            raise Violation("verdict denies what was sent", f"{self.name(address)}: {verdict}, but sent")

    def close(self, life: Life, end: str) -> None:
        if life.number not in self.open:
            raise Violation("two end states", f"insertion {life.number} ends again as {end}")
        self.open.remove(life.number)
        self.ends[end] += 1
