"""The catalogue of faults: one entry each. A new fault is a new entry here, and nothing else."""

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from chaos.network import Trouble
from chaos.plan import Draw, Injection, Sketch
from chaos.plant import SANDBOX, Plant

Act = Callable[[Plant, Injection], None]
REDIS, POSTGRES, PROVIDER = "redis", "postgres", SANDBOX
"""Targets. The provider and the sandbox's process are one: its script of faults goes with it."""
LONGEST_SHARE = 0.2
"""Of a run, that one fault may last; a frozen process, whose peers go on, twice as long."""


@dataclass(frozen=True)
class Fault:
    """`begin` and `end` act on the running plant; `away`: a service is gone meanwhile, and its return is timed."""

    draw: Draw
    begin: Act
    end: Act | None = None
    away: bool = False
    weight: int = 1


def _span(chance: random.Random, shortest: float, longest: float, run: float) -> float:
    return round(chance.uniform(shortest, max(shortest, min(longest, run * LONGEST_SHARE))), 1)


def _lasts(target: str, shortest: float, longest: float) -> Draw:
    return lambda chance, _, run: Sketch(target, _span(chance, shortest, longest, run))


def _at_once(target: str) -> Draw:
    return lambda _chance, _processes, _run: Sketch(target)


# ---- processes
def _some_process(chance: random.Random, processes: Sequence[str], _run: float) -> Sketch:
    return Sketch(chance.choice(processes))


def _frozen_process(chance: random.Random, processes: Sequence[str], run: float) -> Sketch:
    """Up to 90 s: longer than a lease, than Redis' patience with a silent consumer, than every time-out."""
    return Sketch(chance.choice(processes), _span(chance, 2.0, 90.0, 2 * run))


def _signal(number: signal.Signals) -> Act:
    return lambda plant, injection: plant.signal(injection.target, number)


# ---- the way to a service
def _way(service: str, shortest: float, longest: float, *, slow: bool = False) -> Draw:
    """For one process or, as often, for all."""

    def draw(chance: random.Random, processes: Sequence[str], run: float) -> Sketch:
        callers = [name for name in processes if name != SANDBOX]
        who = chance.choice(callers) if chance.random() < 0.5 else "everybody"
        facts = {"for": who, **({"delay": round(chance.uniform(0.05, 0.4), 2)} if slow else {})}
        return Sketch(f"way to {service}", _span(chance, shortest, longest, run), facts)

    return draw


def _who(injection: Injection) -> str | None:
    return None if injection.facts["for"] == "everybody" else str(injection.facts["for"])


def _trouble(service: str, trouble: Trouble, shortest: float, longest: float) -> Fault:
    def begin(plant: Plant, injection: Injection) -> None:
        plant.network.begin(service, _who(injection), trouble, injection.facts.get("delay", 0.0))

    def end(plant: Plant, injection: Injection) -> None:
        plant.network.end(service, _who(injection))

    return Fault(_way(service, shortest, longest, slow=trouble == "delay"), begin, end, away=trouble != "delay")


def _ways(service: str) -> dict[str, Fault]:
    return {
        f"cut {service}": _trouble(service, "cut", 1.0, 8.0),
        f"slow {service}": _trouble(service, "delay", 1.0, 15.0),
        f"black hole to {service}": _trouble(service, "blackhole", 1.0, 20.0),
        f"half-open, {service} gone": _trouble(service, "lost_by_server", 1.0, 12.0),
        f"half-open, process gone for {service}": _trouble(service, "lost_by_client", 1.0, 12.0),
    }


# ---- the provider
def _answers(fault: str, **more: object) -> Fault:
    """The sandbox's own script: so many requests in a row go wrong in this way."""

    def draw(chance: random.Random, _processes: Sequence[str], run: float) -> Sketch:
        facts: dict[str, object] = {"times": chance.randint(3, 40)}
        if fault in ("latency", "429"):
            facts["seconds"] = round(chance.uniform(0.5, 4.0), 1)
        return Sketch(PROVIDER, _span(chance, 4.0, 12.0, run), facts)

    def begin(plant: Plant, injection: Injection) -> None:
        plant.script([{"fault": fault, "path": "/emails", **injection.facts, **more}])

    return Fault(draw, begin, lambda plant, _: plant.script([]), away=True)


CATALOGUE: Mapping[str, Fault] = MappingProxyType(
    {
        "kill": Fault(_some_process, _signal(signal.SIGKILL), weight=4),
        "terminate": Fault(_some_process, _signal(signal.SIGTERM), weight=2),
        "freeze": Fault(_frozen_process, _signal(signal.SIGSTOP), _signal(signal.SIGCONT), weight=2),
        "wipe": Fault(_at_once(REDIS), lambda plant, _: plant.wipe_redis()),
        "restart redis": Fault(
            _lasts(REDIS, 0.5, 10.0),
            lambda plant, _: plant.stop_redis(),
            lambda plant, _: plant.start_redis(),
            away=True,
        ),
        "lose redis": Fault(
            _lasts(REDIS, 0.5, 10.0),
            lambda plant, _: plant.stop_redis(),
            lambda plant, _: plant.start_redis(empty=True),
            away=True,
        ),
        "stall redis": Fault(
            _lasts(REDIS, 1.0, 40.0),
            lambda plant, _: plant.stall("redis"),
            lambda plant, _: plant.go_on("redis"),
            away=True,
        ),
        "restart postgres": Fault(
            _lasts(POSTGRES, 0.5, 10.0),
            lambda plant, _: plant.stop_postgres(),
            lambda plant, _: plant.start_postgres(),
            away=True,
        ),
        "stall postgres": Fault(
            _lasts(POSTGRES, 1.0, 20.0),
            lambda plant, _: plant.stall("postgres"),
            lambda plant, _: plant.go_on("postgres"),
            away=True,
        ),
        "crash postgres": Fault(_lasts(POSTGRES, 2.0, 2.0), lambda plant, _: plant.crash_postgres()),
        "end sessions": Fault(_at_once(POSTGRES), lambda plant, _: plant.end_sessions()),
        **_ways(REDIS),
        **_ways(POSTGRES),
        **{
            f"provider {fault}": _answers(fault)
            for fault in ("latency", "429", "500", "reset_before", "reset_after", "hang", "html_502", "truncated")
        },
        "provider 422": replace(_answers("error", status=422, name="invalid_parameter"), weight=2),  # letters to replay
    }
)
