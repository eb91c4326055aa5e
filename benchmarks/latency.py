"""From publish to the provider on an idle system, and where the time goes."""

import random
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from benchmarks.figures import milliseconds
from benchmarks.report import Size, Step, Table
from benchmarks.rig import WORKER, Rig, until

KIND = "order.shipped"
SPACING = 0.06
JITTER = 0.025
"""Seconds drawn from: the relay's poll, or every sample would meet it in the same place."""


def steps(size: Size) -> int:
    del size
    return 3


def latency(rig: Rig, size: Size, step: Step) -> list[Table]:
    step("starting relay and worker")
    rig.empty()
    rig.start("relay", WORKER)
    _publish(rig, max(5, size.samples // 10))  # connections, prepared statements, templates
    rig.empty()
    step(f"{size.samples} jobs, one at a time")
    published = _publish(rig, size.samples)
    step("reading what arrived")
    rows = [
        _row("publish → provider", _arrivals(rig, published)),
        _row("publish alone (returns committed)", _durations(published)),
    ]
    rows += [_row(f"… {name}", values) for name, values in _stages(rig, published).items()]
    rig.stop(WORKER, "relay")
    notes = [
        f"{size.samples} {KIND}, one every {1000 * SPACING:.0f} to {1000 * (SPACING + JITTER):.0f} ms; "
        "one clock at both ends, the sandbox's read to the millisecond",
        "… is the job's own history, on Postgres' clock: which part waits",
    ]
    return [Table("Latency on an idle system", rows, notes)]


def _publish(rig: Rig, count: int) -> dict[str, tuple[float, float]]:
    """When each job was given to publish, and when publish returned: unix seconds."""
    chance, times = random.Random(1), {}
    for job in rig.jobs(count, KIND):
        before = time.time()
        rig.app.queue.publish(job.queues, job.envelope)
        times[str(job.envelope.job_id)] = (before, time.time())
        time.sleep(SPACING + chance.uniform(0, JITTER))
    until(lambda: rig.waiting() == 0, "all samples are delivered")
    return times


def _arrivals(rig: Rig, published: Mapping[str, tuple[float, float]]) -> list[float]:
    return [_at(mail["at"]) - published[mail["tags"]["job"]][0] for mail in rig.sandbox.mails()]


def _durations(published: Mapping[str, tuple[float, float]]) -> list[float]:
    return [returned - given for given, returned in published.values()]


def _stages(rig: Rig, published: Mapping[str, tuple[float, float]]) -> dict[str, list[float]]:
    each_moves = [
        moves(row[0])
        for row in rig.rows("SELECT history FROM core.delivery WHERE job_id = ANY (%s)", (list(published),))
    ]
    pairs = (("ready", "pushed"), ("pushed", "claimed"), ("claimed", "delivered"))
    return {f"{a} → {b}": [each[b] - each[a] for each in each_moves] for a, b in pairs}


def moves(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """State → when a job last entered it, unix seconds."""
    return {move["state"]: _at(move["at"]) for move in history}


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _row(name: str, seconds: list[float]) -> dict[str, object]:
    return {"": name, **milliseconds(seconds), "samples": len(seconds)}
