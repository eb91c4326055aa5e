"""A steady load for minutes: what grows; and then what an old snapshot costs that an outsider holds."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from statistics import linear_regression, median

import psycopg

from benchmarks.figures import percentile
from benchmarks.held import by_roles, by_servers
from benchmarks.latency import moves
from benchmarks.load import Arrivals, Load
from benchmarks.report import Size, Step, Table
from benchmarks.rig import MARKETING, WORKER, Rig, until

ROLES = (WORKER, f"{WORKER}#2", MARKETING, "relay", "maintenance")
KINDS = ("email.message", "order.shipped", "parcel.offer")
PER_SECOND = 40
WARM = 60.0
"""Seconds until pools, caches and allocators have their size."""
EVERY = 30.0
"""Seconds between two looks."""
UNIT = 60.0
"""Seconds at both ends of the snapshot's life that are told by themselves, and after it."""
SLACK = 2.0
"""A count may differ by so much between first and last: a job under way, a session just opened."""
SLOPE = 0.5
"""MB a minute: below it an allocator's breathing is not told from a leak."""
ALARM = "an old snapshot is held"
FLOWS = "SELECT count(*), count(*) FILTER (WHERE state = 'claimed' AND due_at < core.clock() - interval '5 s') FROM core.outbox"
PICKS = (
    "SELECT coalesce(sum(calls), 0), coalesce(sum(total_time), 0) FROM pg_stat_user_functions WHERE funcname = 'pick'"
)
DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'core' AND relname = 'outbox'"


@dataclass
class Phase:
    """A stretch of the run, and what the relay's picks took in it by the server's own count."""

    name: str
    seconds: float
    began: float = 0.0
    ended: float = 0.0
    pick_ms: float | None = None
    dead_rows: int = 0


@dataclass
class Watch:
    """Looks again and again: (who, what) → (minute, value), from the end of the warm-up."""

    rig: Rig
    load: Load
    step: Step
    every: float
    began: float = field(default_factory=time.monotonic)
    series: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)

    def during(self, phase: Phase) -> Phase:
        phase.began, picks = time.time(), self.rig.rows(PICKS)[0]
        looks = _looks(phase, self.every)
        for number in range(1, looks + 1):
            time.sleep(max(0.0, phase.began + number * phase.seconds / looks - time.time()))
            self._look(phase.name)
        phase.ended, after = time.time(), self.rig.rows(PICKS)[0]
        if after[0] > picks[0]:
            phase.pick_ms = (after[1] - picks[1]) / float(after[0] - picks[0])
        phase.dead_rows = self.rig.rows(DEAD)[0][0]
        return phase

    def _look(self, name: str) -> None:
        waiting, lost = self.rig.rows(FLOWS)[0]
        held = {
            **{who: parts for who, parts in by_roles(self.rig).items() if who != "sandbox"},  # it remembers every mail
            **by_servers(self.rig),
            "outbox": {"rows": waiting, "claims past their lease": lost},
        }
        minute = (time.monotonic() - self.began) / 60
        for who, parts in held.items():
            for what, value in parts.items():
                self.series.setdefault((who, what), []).append((minute, value))
        self.step(f"{name}: minute {minute:.1f}, {len(self.load.taken):,} jobs published, {waiting} in the outbox")


def steps(size: Size) -> int:
    return 2 + sum(_looks(phase, _every(size)) for phase in _phases(size))


def endurance(rig: Rig, size: Size, step: Step) -> list[Table]:
    step("starting every role, two workers")
    rig.empty()
    rig.rows("ALTER ROLE notif_maintenance SET track_functions = 'pl'")  # as the relay connects: its picks are timed
    rig.start(*ROLES)
    load, arrivals = Load(rig, KINDS, 1 / PER_SECOND), Arrivals(rig)
    with load.running():
        warm = min(WARM, 6 * size.minutes)
        step(f"warming up, {warm:g} s")
        time.sleep(warm)
        watch = Watch(rig, load, step, _every(size))
        steady, *held, after = _phases(size)
        phases = [watch.during(steady)]
        with _snapshot(rig) as since:
            phases += [watch.during(phase) for phase in held]
        phases.append(watch.during(after))
        alarm = _alarm(rig, since)
    until(lambda: load.taken.keys() <= arrivals.look().keys(), "everything arrives", every=0.2)
    until(lambda: rig.waiting() == 0, "everything is settled")
    rig.stop(*ROLES)
    rig.rows("ALTER ROLE notif_maintenance RESET track_functions")
    return [_grown(watch.series, load, arrivals), _snapshot_table(rig, phases, load, arrivals, alarm)]


def _phases(size: Size) -> list[Phase]:
    held = size.held_minutes * 60
    unit = min(UNIT, held / 3)
    return [
        Phase("before", size.minutes * 60),
        Phase("it is held, at first", unit),
        Phase("it is held, meanwhile", held - 2 * unit),
        Phase("it is held, at last", unit),
        Phase("after", unit),
    ]


def _every(size: Size) -> float:
    return min(EVERY, 3 * size.minutes)


def _looks(phase: Phase, every: float) -> int:
    return max(1, round(phase.seconds / every))


@contextmanager
def _snapshot(rig: Rig) -> Iterator[float]:
    """An outsider's, held until the block ends; since when, unix seconds."""
    with psycopg.connect(rig.admin_url("notif"), application_name="an outsider") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM core.outbox")
        yield time.time()
        connection.rollback()


def _alarm(rig: Rig, since: float) -> float | None:
    """Seconds until a person was told."""
    told = [
        datetime.fromisoformat(each["started_at"]).timestamp()
        for each in rig.sandbox.incidents()
        if ALARM in each["cause"]
    ]
    return told[0] - since if told else None


def _grown(series: Mapping[tuple[str, str], Sequence[tuple[float, float]]], load: Load, arrivals: Arrivals) -> Table:
    rows = [verdict(who, what, samples) for (who, what), samples in series.items()]
    grew = [f"{row['who']}: {row['what']}" for row in rows if row["verdict"] != "steady"]
    minutes = max(samples[-1][0] for samples in series.values())
    notes = [
        f"{len(load.taken):,} jobs of {len(KINDS)} kinds, {PER_SECOND} a second; {minutes:.0f} minutes after the warm-up; "
        f"{arrivals.doubled} doubled, {load.refused} publishes refused; what grew: {', '.join(grew) or 'nothing'}",
        f"steady: the medians of the first and the last three differ by {SLACK:g} at most; MB grow less than {SLOPE:g} a minute",
    ]
    return Table("Endurance", rows, notes)


def verdict(who: str, what: str, samples: Sequence[tuple[float, float]]) -> dict[str, object]:
    """A line of the table: whether what was seen, as (minute, value), grows or only varies."""
    values = [value for _, value in samples]
    slope = linear_regression(*zip(*samples, strict=True)).slope if len(samples) > 1 else 0.0
    grew = median(values[-3:]) - median(values[:3])
    worse = slope >= SLOPE if what == "MB" else grew > SLACK
    return {
        "who": who,
        "what": what,
        "first": values[0],
        "last": values[-1],
        "most": max(values),
        "a minute": round(slope, 2),
        "verdict": "grows" if worse else "steady",
    }


def _snapshot_table(rig: Rig, phases: Sequence[Phase], load: Load, arrivals: Arrivals, alarm: float | None) -> Table:
    rows = []
    for phase in phases:
        jobs = [job for job, (given, _) in load.taken.items() if phase.began <= given < phase.ended]
        whole = [arrivals.at[job] - load.taken[job][0] for job in jobs]
        waited = _waited(rig, jobs)
        rows.append({
            "an old snapshot": phase.name,
            "s": round(phase.ended - phase.began),
            "jobs": len(jobs),
            "publish → provider p50 ms": round(1000 * percentile(whole, 50), 1),
            "p99 ms": round(1000 * percentile(whole, 99), 1),
            "ready → pushed p50 ms": round(1000 * percentile(waited, 50), 1),
            "p99 of it": round(1000 * percentile(waited, 99), 1),
            "a pick ms": phase.pick_ms and round(phase.pick_ms, 2),
            "dead rows at its end": phase.dead_rows,
        })  # fmt: skip
    told = f"the alarm showed after {alarm:.0f} s" if alarm is not None else "the alarm did not show"
    notes = [
        "an outsider's REPEATABLE READ transaction in notif's database, idle; a pick: the mean of all the relay's, empty ones",
        f"included, by the server's own count; dead rows: row versions of the outbox as the statistics know them; {told}",
    ]
    return Table("An old snapshot", rows, notes)


def _waited(rig: Rig, jobs: Sequence[str]) -> list[float]:
    """Seconds from ready to pushed, by the jobs' own history."""
    found, rest = [], iter(jobs)
    while part := list(islice(rest, 5000)):
        rows = rig.rows("SELECT history FROM core.delivery WHERE job_id = ANY (%s)", (part,))
        found += [each["pushed"] - each["ready"] for each in map(moves, (row[0] for row in rows))]
    return found
