"""One seed: build the plant, load it, harm it by plan, heal it, wait until it is empty, look."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos.catalogue import CATALOGUE, CLOCK_OF
from chaos.checker import Books, Wrong, check
from chaos.evidence import collect, histories, left_on_redis
from chaos.load import PERSON, Load
from chaos.plan import Injection, draw_plan
from chaos.plant import OPERATOR, PUBLISHER, ROLES, Plant
from chaos.recovery import Outage, Recovery, Watch, longest, recoveries

RATE = 30.0
"""Jobs a second."""
EMPTY_WITHIN = 180.0
"""Seconds after healing by which all must have ended: the longest closing, five attempts, a lease or two."""
PUBLISHED_WITHIN = 30.0
"""Seconds after healing by which publishing must have succeeded."""
RESUMED_WITHIN = 30.0
"""Seconds after a service's return by which each queue must deliver again."""
REDIS_WITHIN = 45.0
"""Seconds by which the last reference is off Redis: a dead process' are given back after its heartbeat's time-out."""
SHOWN = 5
"""Wrong jobs whose history is shown."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Happened:
    """One entry of the timeline; `at`: seconds since the run's start."""

    at: float
    text: str


@dataclass(frozen=True)
class Result:
    """One seed. Seconds: `emptied` from healing to an empty outbox, `recovery` from a service's return to a delivery.

    `waited`: the same where a halt, or a clock that went back, held jobs rightly. `left_out`: what this machine can't do, and why.
    """

    seed: int
    minutes: float
    faults: dict[str, int]
    books: Books
    recovery: Recovery
    waited: Recovery
    emptied: float
    refusals: int
    left_out: dict[str, str] = field(default_factory=dict)
    timeline: list[Happened] = field(default_factory=list)
    histories: dict[str, list[str]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.books.wrong


def possible_plan(seed: int, minutes: float, lacking: Collection[str]) -> list[Injection]:
    """Without the faults that need what this machine lacks. Drawn whole: all else of a seed is the same wherever it runs."""
    plan = draw_plan(seed, minutes * 60.0, list(ROLES), CATALOGUE)
    return [injection for injection in plan if CATALOGUE[injection.fault].needs not in lacking]


class Trial:
    """`say` hears what is going on. `keep`: a folder that gets the processes' logs. Use it on the main thread.

    `lacking`: what of disks and clocks this machine doesn't give, and why.
    """

    def __init__(
        self, seed: int, minutes: float, say: Say, lacking: Mapping[str, str], keep: Path | None = None
    ) -> None:
        self._seed, self._minutes, self._say, self._keep = seed, minutes, say, keep
        self._lacking = lacking
        self.timeline: list[Happened] = []
        """What has happened so far."""
        self._outages: list[Outage] = []
        self._began = time.time()

    def run(self) -> Result:
        """Raises NotifError, OSError or psycopg.Error: the harness itself could not go on."""
        plan = possible_plan(self._seed, self._minutes, self._lacking)
        self._say("starting two of everything")
        with ExitStack() as stack:
            faked = {name for name in ROLES if any(injection.target == CLOCK_OF + name for injection in plan)}
            plant = stack.enter_context(Plant(self._heard, disks="disks" not in self._lacking, faked=faked))
            stack.callback(self._keep_logs, plant)
            publisher, operator = plant.app(PUBLISHER), plant.app(OPERATOR)
            load = Load(publisher, operator, plant.tenants, self._seed, RATE)
            stack.callback(operator.close)
            stack.callback(publisher.close)
            stack.callback(load.join, 5.0)
            stack.callback(load.end)
            stack.callback(plant.heal_at_once)  # whatever a thread of the load waits for, it must not wait at the end
            watch = Watch(plant.services.delivered)
            stack.callback(watch.end)
            self._began = time.time()
            load.start()
            watch.start()
            self._harm(plant, plan, load)
            return self._judged(plant, load, watch, plan)

    # ---- the phases
    def _harm(self, plant: Plant, plan: Sequence[Injection], load: Load) -> None:
        """Every fault begins and ends when the plan says so, or as soon as the one before it is done."""
        steps = sorted(
            [(i.at, 1, i.number, i) for i in plan] + [(i.end, 2, i.number, i) for i in plan if CATALOGUE[i.fault].end]
        )
        for at, phase, _, injection in steps:
            while self._elapsed() < at:
                self._progress(plant, load)
                time.sleep(min(0.5, max(0.0, at - self._elapsed())))
            (self._begin if phase == 1 else self._end)(plant, injection)
        while self._elapsed() < self._minutes * 60.0:
            self._progress(plant, load)
            time.sleep(0.2)

    def _begin(self, plant: Plant, injection: Injection) -> None:
        fault = CATALOGUE[injection.fault]
        self._note(injection.text + (f", for {injection.end - injection.at:.1f} s" if fault.end else ""))
        fault.begin(plant, injection)
        # `away` without an end: the server comes back by itself
        self._returned(injection, 0, fault.goes_on or (fault.away and not fault.end))

    def _end(self, plant: Plant, injection: Injection) -> None:
        fault = CATALOGUE[injection.fault]
        assert fault.end
        fault.end(plant, injection)
        self._note(f"  over: {injection.text}")
        self._returned(injection, 1, fault.away)

    def _returned(self, injection: Injection, phase: int, timed: bool) -> None:
        fault = CATALOGUE[injection.fault]
        self._outages.append(Outage(injection.text, time.time(), timed, fault.held[phase](injection), fault.queues))

    def _judged(self, plant: Plant, load: Load, watch: Watch, plan: Sequence[Injection]) -> Result:
        load.end()
        plant.heal()
        self._note("all is healed")
        healed, wrong = time.monotonic(), list[Wrong]()
        if not load.join(PUBLISHED_WITHIN):
            wrong.append(Wrong("stuck", "", "", f"publishing did not succeed within {PUBLISHED_WITHIN:g} s of healing"))
        self._wait(plant.waiting, EMPTY_WITHIN, "rows in the outbox")
        emptied = time.monotonic() - healed
        self._note("the outbox is empty" if not plant.waiting() else "the outbox isn't empty")
        where = plant.services
        self._wait(lambda: sum(left_on_redis(where.redis_url).values()), REDIS_WITHIN, "references on Redis")
        watch.end()
        found = recoveries(self._outages, watch.seen)
        wrong += [
            Wrong("late", "", late.queue, late.text) for late in found if late.seconds > RESUMED_WITHIN + late.held
        ]
        seen = collect(where.admin_url, plant.sandbox_url, where.redis_url, plant.logs, PERSON)
        books = check(load.journal.all(), seen)
        wrong += books.wrong
        wrong += [Wrong("wrong", "", "", surprise) for surprise in load.journal.surprises]
        first = list(dict.fromkeys(each.job for each in wrong if each.job))[:SHOWN]
        return Result(
            self._seed,
            self._minutes,
            dict(Counter(injection.fault for injection in plan)),
            replace(books, wrong=wrong),
            longest(found, held=False),
            longest(found, held=True),
            emptied,
            sum(job.refusals for job in load.journal.all()),
            {name: self._lacking[fault.needs] for name, fault in CATALOGUE.items() if fault.needs in self._lacking},
            list(self.timeline),
            histories(where.admin_url, first),
        )

    # ---- meanwhile
    def _wait(self, count: Callable[[], int], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while (left := count()) and time.monotonic() < end:
            self._say(f"healed; {left} {what}")
            time.sleep(0.25)

    def _elapsed(self) -> float:
        return time.time() - self._began

    def _note(self, text: str) -> None:
        self.timeline.append(Happened(round(self._elapsed(), 1), text))

    def _heard(self, role: str, text: str) -> None:
        if not text.startswith("started"):
            self._note(f"  {role}: {text}")

    def _progress(self, plant: Plant, load: Load) -> None:
        del plant
        last = self.timeline[-1].text.strip() if self.timeline else "no fault yet"
        self._say(
            f"{self._elapsed():.0f} of {self._minutes * 60:.0f} s, {load.journal.count()} jobs published; {last}"
        )  # fmt: skip

    def _keep_logs(self, plant: Plant) -> None:
        if self._keep:
            shutil.copytree(plant.logs, self._keep / f"seed-{self._seed}", dirs_exist_ok=True)
