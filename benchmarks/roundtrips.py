"""Round trips and commits per job, counted on the wire."""

from collections import Counter
from collections.abc import Mapping

from benchmarks.report import Size, Step, Table
from benchmarks.rig import WORKER, Rig, until
from benchmarks.wire import Wire

KINDS = ("email.message", "order.shipped")
PER_JOB = ("core.gate", "core.claim", "core.freeze", "core.settle", "core.pick", "push", "fetch", "ack")
"""What a job causes; the rest goes by the clock."""
SUMS = ("HTTP requests", "statements to Postgres", "commands to Redis", "transactions that wrote")
ROLES = ("relay", WORKER)


def steps(size: Size) -> int:
    del size
    return len(KINDS)


def roundtrips(rig: Rig, size: Size, step: Step) -> list[Table]:
    seen: dict[str, Counter[str]] = {}
    for kind in KINDS:
        step(f"{size.counted:,} {kind}")
        seen[kind] = _count(rig, kind, size.counted)
    names = [name for name in PER_JOB if any(counts[name] for counts in seen.values())]
    rest = sorted({name for counts in seen.values() for name in counts} - {*PER_JOB, *SUMS})
    rows = [_row(name, seen, size.counted) for name in (*names, *SUMS)]
    clock = [{"": name, **{kind: counts[name] for kind, counts in seen.items()}} for name in rest]
    notes = [
        f"{size.counted:,} jobs of each kind published before relay and worker start; per job, publishing not included",
        "pick, push and fetch carry many jobs each; a relay that finds nothing due picks too",
    ]
    return [
        Table("Round trips and commits per job", rows, notes),
        Table("The rest: connecting, and what goes by the clock", clock, ["in all, during the same runs"]),
    ]


def _count(rig: Rig, kind: str, count: int) -> Counter[str]:
    rig.empty()
    rig.app.queue.publish_many(rig.jobs(count, kind))
    with Wire(rig) as wire:
        rig.start(*ROLES)
        until(lambda: rig.waiting() == 0, f"{count} {kind} are delivered")
        requests = rig.sandbox.counts()["requests"]
        rig.stop(*ROLES)
    seen = wire.statements + wire.commands
    sums = (requests, wire.statements.total(), wire.commands.total(), wire.writes)
    return seen + Counter(dict(zip(SUMS, sums, strict=True)))


def _row(name: str, seen: Mapping[str, Counter[str]], count: int) -> dict[str, object]:
    return {"": name, **{kind: round(counts[name] / count, 3) for kind, counts in seen.items()}}
