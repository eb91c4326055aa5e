"""Jobs per second and CPU per job, beside what a product would write by hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from benchmarks import cpu
from benchmarks.arms import Arm, Notif, Rival
from benchmarks.figures import median
from benchmarks.report import Size, Step, Table
from benchmarks.rig import Rig, until
from notif.errors import NotifError

YARDSTICK = "(b) hand-written, SDK as shipped"
POLL = 0.05
"""Seconds between two looks at the sandbox; a look costs it a thread."""
NOOP_POLL = 0.01
NOOP_TIMES = 2
"""The no-op is so fast that it gets so many times the jobs."""


@dataclass(frozen=True)
class Run:
    """One arm in one round: jobs per second, microseconds of CPU per job by process, percent of the machine elsewhere."""

    rate: float
    cpu: Mapping[str, float]
    elsewhere: float


def steps(size: Size) -> int:
    return size.rounds * 5


def throughput(rig: Rig, size: Size, step: Step) -> list[Table]:
    arms: list[Arm] = [
        Rival(rig, "(a) Dramatiq, no-op", "noop"),
        Rival(rig, YARDSTICK, "email"),
        Rival(rig, "(c) hand-written, pooled client", "email", pooled=True),
        Notif(rig, "email.message"),
        Notif(rig, "order.shipped"),
    ]
    runs: dict[str, list[Run]] = {arm.name: [] for arm in arms}
    for number in range(size.rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):  # what drifts hits both ends alike
            step(f"round {number + 1}, {arm.name}")
            runs[arm.name].append(_run(rig, arm, size.jobs if arm.sends else NOOP_TIMES * size.jobs))
    yardstick = median([run.rate for run in runs[YARDSTICK]])
    worst = max(run.elsewhere for each in runs.values() for run in each)
    notes = [
        f"{size.jobs:,} jobs loaded before the start ({NOOP_TIMES} times as many for the no-op), one process of 8 threads, "
        f"{size.rounds} rounds, medians; from first to last arrival at the sandbox (no-op: first to last ack)",
        f"other programs took at most {worst:.0f} % of the machine during a run",
    ]
    return [Table("Throughput", [_row(name, each, yardstick) for name, each in runs.items()], notes)]


def _run(rig: Rig, arm: Arm, count: int) -> Run:
    arm.load(count)
    arm.start()
    until(lambda: arm.done() > 0, f"{arm.name}: the first of {count} jobs is done", every=0.01)
    servers = {name: pid for name, pid in rig.pids.items() if name in ("postgres", "valkey", "sandbox")}
    looked = servers | arm.pids
    first, done_first = cpu.look(looked), arm.done()
    until(lambda: arm.done() >= count, f"{arm.name}: {count} jobs are done", every=POLL if arm.sends else NOOP_POLL)
    spent = cpu.look(looked).since(first)
    rate = _arrival_rate(rig, count) if arm.sends else (count - done_first) / spent.at
    arm.finish()
    _check(rig, arm, count)
    each = {name: 1e6 * seconds / (count - done_first) for name, seconds in spent.seconds.items()}
    return Run(rate, each, spent.elsewhere)


def _arrival_rate(rig: Rig, count: int) -> float:
    arrived = [datetime.fromisoformat(mail["at"]) for mail in rig.sandbox.mails()]
    return (count - 1) / (arrived[-1] - arrived[0]).total_seconds()


def _check(rig: Rig, arm: Arm, count: int) -> None:
    """A figure of a run that lost or repeated something is none."""
    counts = rig.sandbox.counts()
    wanted = count if arm.sends else 0
    if counts["mails"] != wanted or counts["requests"] != wanted:
        raise NotifError(f"{arm.name}: {count} jobs made {counts['mails']} mails in {counts['requests']} requests")


def _row(name: str, runs: list[Run], yardstick: float) -> dict[str, object]:
    rates = [run.rate for run in runs]
    spent = {
        part: round(median([run.cpu.get(part, 0.0) for run in runs]))
        for part in ("worker", "relay", "postgres", "valkey")
    }
    return {
        "arm": name,
        "jobs/s": round(median(rates)),
        "lowest": round(min(rates)),
        "highest": round(max(rates)),
        "÷ (b)": round(median(rates) / yardstick, 2),
        "µs CPU/job: worker": spent["worker"],
        "relay": spent["relay"] or None,
        "postgres": spent["postgres"],
        "valkey": spent["valkey"],
        "all four": sum(spent.values()),
        "sandbox": round(median([run.cpu["sandbox"] for run in runs])),
    }
