"""Publishing many jobs at once."""

import time

from benchmarks.report import Size, Step, Table
from benchmarks.rig import Rig
from benchmarks.wire import Wire

KINDS = ("email.message", "order.shipped")


def steps(size: Size) -> int:
    del size
    return len(KINDS)


def publishing(rig: Rig, size: Size, step: Step) -> list[Table]:
    rows = []
    for kind in KINDS:
        step(f"publish_many of {size.published:,} {kind}")
        rows.append(_publish_many(rig, size.published, kind))
    rig.empty()
    notes = [
        "`checks` is the part spent on models, addresses and a trial rendering, timed by itself; one transaction each"
    ]
    return [Table(f"publish_many of {size.published:,} jobs", rows, notes)]


def _publish_many(rig: Rig, count: int, kind: str) -> dict[str, object]:
    rig.empty()
    jobs = rig.jobs(count, kind)
    started = time.perf_counter()
    for job in jobs:
        rig.app.checker.rows(job)
    checked = time.perf_counter()
    rig.app.queue.publish_many(jobs)
    published = time.perf_counter()
    rig.empty()
    with Wire(rig) as wire:
        rig.app.queue.publish_many(jobs)
    return {
        "kind": kind,
        "tenants": len({job.envelope.tenant_id for job in jobs}),
        "seconds": round(published - checked, 2),
        "checks": round(checked - started, 2),
        "jobs/s": round(count / (published - checked)),
        "round trips": wire.statements.total(),
        "statements": ", ".join(f"{number} {name}" for name, number in wire.statements.items()),
    }
