"""The catalogue of faults: one entry each. A new fault is a new entry here, and nothing else."""

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from chaos.load import SHOP
from chaos.network import Trouble
from chaos.plan import Draw, Injection, Sketch
from chaos.plant import SANDBOX, Plant

Act = Callable[[Plant, Injection], None]
REDIS, POSTGRES, PROVIDER = "redis", "postgres", SANDBOX
"""Targets. The provider and the sandbox's process are one: its script of faults goes with it."""
LONGEST_SHARE = 0.2
"""Of a run, that one fault may last; a frozen process, whose peers go on, twice as long."""


CLOCK_OF = "clock of "
"""How a target begins that is not a thing but its clock."""
PROVIDER_QUEUES = "notif."
"""How the names of queues begin that send through a provider."""
PROBED_WITHIN = 45.0
"""Seconds, beyond those that all else is given, until a halt ends by itself: a probe a minute, woken every 10 s."""
Held = Callable[[Injection], float]
"""Seconds after a moment for which jobs may rightly wait."""


def _nothing(_: Injection) -> float:
    return 0.0


@dataclass(frozen=True)
class Fault:
    """`begin` and `end` act on the running plant; `away`: a service is gone meanwhile, and its return is timed.

    `goes_on`: work must go on from its very beginning, and that is timed. `held`: for how long jobs of `queues` (names that
    begin so) may wait after its beginning, and after its end. `needs`: disks or clocks, which not every machine gives.
    """

    draw: Draw
    begin: Act
    end: Act | None = None
    away: bool = False
    weight: int = 1
    goes_on: bool = False
    held: tuple[Held, Held] = (_nothing, _nothing)
    queues: str = ""
    needs: str = ""


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


def _halt(answers: Mapping[str, int], weight: int) -> Fault:
    """Every request is refused for a reason that needs a person; who then says so, or a probe finds out."""

    def draw(chance: random.Random, _processes: Sequence[str], run: float) -> Sketch:
        facts = {"answer": chance.choice(sorted(answers)), "ended by": _ended_by(chance)}
        return Sketch(PROVIDER, _span(chance, 3.0, 8.0, run), facts)

    def begin(plant: Plant, injection: Injection) -> None:
        name = injection.facts["answer"]
        plant.script([{"fault": "error", "path": "/emails", "status": answers[name], "name": name, "times": None}])

    def end(plant: Plant, injection: Injection) -> None:
        plant.script([])
        _resumed(plant, injection, "")

    return Fault(draw, begin, end, True, weight, held=(_nothing, _probed), queues=PROVIDER_QUEUES)


def _domain_halt() -> Fault:
    """One of two sender domains; the other's jobs, of every queue, must go on."""

    def draw(chance: random.Random, _processes: Sequence[str], run: float) -> Sketch:
        return Sketch(PROVIDER, _span(chance, 3.0, 12.0, run), {"domain": SHOP, "ended by": _ended_by(chance)})

    def end(plant: Plant, injection: Injection) -> None:
        plant.unverify([])
        _resumed(plant, injection, SHOP)

    return Fault(draw, lambda plant, _: plant.unverify([SHOP]), end, away=True, goes_on=True)


def _ended_by(chance: random.Random) -> str:
    return "a person" if chance.random() < 0.6 else "a probe"


def _resumed(plant: Plant, injection: Injection, domain: str) -> None:
    if injection.facts["ended by"] == "a person":
        plant.resume("resend", domain)


def _probed(_: Injection) -> float:
    return PROBED_WITHIN


# ---- clocks
def _clock(
    owner: Callable[[random.Random, Sequence[str]], str], turn: Callable[[Plant, str, float], None], weight: int = 1
) -> Fault:
    """Off by two seconds to 90, either way; right again at the end: so it goes back once, whichever way it went first."""

    def draw(chance: random.Random, processes: Sequence[str], run: float) -> Sketch:
        by = round(_span(chance, 2.0, 90.0, 2.5 * run) * chance.choice((-1, 1)), 1)
        return Sketch(CLOCK_OF + owner(chance, processes), _span(chance, 3.0, 30.0, run), {"by": by})

    def begin(plant: Plant, injection: Injection) -> None:
        turn(plant, injection.target.removeprefix(CLOCK_OF), injection.facts["by"])

    def end(plant: Plant, injection: Injection) -> None:
        turn(plant, injection.target.removeprefix(CLOCK_OF), 0.0)

    return Fault(draw, begin, end, True, weight, goes_on=True, needs="clocks")


def _postgres_clock() -> Fault:
    """Every timer of ours is on it: what was timed before it went back by N seconds waits for N seconds more."""
    fault = _clock(lambda _chance, _processes: POSTGRES, lambda plant, name, by: plant.services.set_clock(name, by), 2)
    return replace(fault, held=(lambda i: max(0.0, -i.facts["by"]), lambda i: max(0.0, i.facts["by"])))


def _a_process(chance: random.Random, processes: Sequence[str]) -> str:
    return chance.choice([name for name in processes if name != SANDBOX])


# ---- disks and memory
def _full_disk(service: str, longest: float) -> Fault:
    def draw(chance: random.Random, _processes: Sequence[str], run: float) -> Sketch:
        facts = {"log too": chance.random() < 0.5} if service == POSTGRES else {}
        return Sketch(service, _span(chance, 2.0, longest, run), facts)

    def begin(plant: Plant, injection: Injection) -> None:
        plant.services.fill_disk(service, log_too=injection.facts.get("log too", False))

    return Fault(draw, begin, lambda plant, _: plant.services.free_disk(service), away=True, needs="disks")


CATALOGUE: Mapping[str, Fault] = MappingProxyType(
    {
        "kill": Fault(_some_process, _signal(signal.SIGKILL), weight=4),
        "terminate": Fault(_some_process, _signal(signal.SIGTERM), weight=2),
        "freeze": Fault(_frozen_process, _signal(signal.SIGSTOP), _signal(signal.SIGCONT), weight=2),
        "wipe": Fault(_at_once(REDIS), lambda plant, _: plant.services.wipe_redis()),
        "restart redis": Fault(
            _lasts(REDIS, 0.5, 10.0),
            lambda plant, _: plant.services.stop_redis(),
            lambda plant, _: plant.services.start_redis(),
            away=True,
        ),
        "lose redis": Fault(
            _lasts(REDIS, 0.5, 10.0),
            lambda plant, _: plant.services.stop_redis(),
            lambda plant, _: plant.services.start_redis(empty=True),
            away=True,
        ),
        "stall redis": Fault(
            _lasts(REDIS, 1.0, 40.0),
            lambda plant, _: plant.services.stall("redis"),
            lambda plant, _: plant.services.go_on("redis"),
            away=True,
        ),
        "restart postgres": Fault(
            _lasts(POSTGRES, 0.5, 10.0),
            lambda plant, _: plant.services.stop_postgres(),
            lambda plant, _: plant.services.start_postgres(),
            away=True,
        ),
        "stall postgres": Fault(
            _lasts(POSTGRES, 1.0, 20.0),
            lambda plant, _: plant.services.stall("postgres"),
            lambda plant, _: plant.services.go_on("postgres"),
            away=True,
        ),
        "crash postgres": Fault(_lasts(POSTGRES, 2.0, 2.0), lambda plant, _: plant.services.crash_postgres()),
        "end sessions": Fault(_at_once(POSTGRES), lambda plant, _: plant.services.end_sessions()),
        "disk of postgres full": replace(_full_disk(POSTGRES, 12.0), weight=2),
        "disk of redis full": _full_disk(REDIS, 10.0),
        "memory of redis full": Fault(
            _lasts(REDIS, 1.0, 15.0),
            lambda plant, _: plant.services.limit_redis(1),
            lambda plant, _: plant.services.limit_redis(0),
            away=True,
        ),
        "old snapshot": Fault(
            _lasts("snapshot", 10.0, 60.0),
            lambda plant, _: plant.services.hold_snapshot(),
            lambda plant, _: plant.services.end_snapshot(),
            goes_on=True,
        ),
        "rolling restart": Fault(
            lambda _chance, _processes, _run: Sketch("all processes", 45.0),
            lambda plant, _: plant.restart_all(),
            lambda plant, _: plant.end_restarts(),
            goes_on=True,
        ),
        "clock jump, postgres": _postgres_clock(),
        "clock jump, redis": _clock(
            lambda _chance, _processes: REDIS, lambda plant, name, by: plant.services.set_clock(name, by)
        ),
        "clock jump, process": _clock(_a_process, lambda plant, name, by: plant.set_clock(name, by)),
        "provider halted": _halt({"missing_api_key": 401, "invalid_api_key": 403}, 2),
        "domain halted": _domain_halt(),
        **_ways(REDIS),
        **_ways(POSTGRES),
        **{
            f"provider {fault}": _answers(fault)
            for fault in ("latency", "429", "500", "reset_before", "reset_after", "hang", "html_502", "truncated")
        },
        "provider 422": replace(_answers("error", status=422, name="invalid_parameter"), weight=2),  # letters to replay
    }
)
