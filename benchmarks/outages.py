"""What an outage costs: a steady trickle of jobs, something taken away for a while, and how long it takes when it is back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.report import Size, Step, Table
from benchmarks.rig import QUEUE, WORKER, Rig, until
from notif.errors import Unavailable

SPACING = 0.1
"""Seconds between two jobs: ten a second, a tenth of what one worker does."""
SETTLED = 3.0
"""Seconds of good weather before each outage."""
DOWN = {"fault": "error", "status": 500, "name": "internal_server_error", "path": "/emails", "times": None}
Outage = Callable[[Rig, float], None]
"""Takes something away for so many seconds, and returns when it is back."""
ROLES = (WORKER, f"{WORKER}#2", "relay", "maintenance")


@dataclass
class Trickle:
    """Publishes as a product would: what is refused is published again under the same id, until it is taken."""

    rig: Rig
    taken: dict[str, float] = field(default_factory=dict)
    """Job id → when publish returned, unix seconds."""
    refused: int = 0

    def run(self, stop: threading.Event) -> None:
        for job in self.rig.jobs(100_000, "email.message"):
            while not stop.wait(SPACING):
                try:
                    self.rig.app.queue.publish(job.queues, job.envelope)
                except Unavailable:
                    self.refused += 1
                    continue
                self.taken[str(job.envelope.job_id)] = time.time()
                break
            if stop.is_set():
                return


def down(*names: str) -> Outage:
    """These servers stop, and start again with their data."""

    def stop_and_start(rig: Rig, seconds: float) -> None:
        servers = [getattr(rig.machine.servers, name) for name in names]
        for server in servers:
            server.stop()
        time.sleep(seconds)
        for server in servers:
            server.start()

    return stop_and_start


def redis_wiped(rig: Rig, seconds: float) -> None:
    rig.redis.flushall()
    time.sleep(seconds)


def stalled(*names: str) -> Outage:
    """SIGSTOP to all of them and their children, and SIGCONT."""

    def stall(rig: Rig, seconds: float) -> None:
        pids = [pid for name in names for pid in _family(rig.pids[name])]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    return stall


def killed(*names: str) -> Outage:
    def kill(rig: Rig, seconds: float) -> None:
        for name in names:
            rig.machine.kill(name)
        time.sleep(seconds)

    return kill


def provider_down(rig: Rig, seconds: float) -> None:
    rig.sandbox.faults([DOWN])
    time.sleep(seconds)
    rig.sandbox.faults([])


OUTAGES: Mapping[str, tuple[Outage, float]] = {
    "Redis down": (down("valkey"), 10),
    "Redis down, a minute": (down("valkey"), 60),
    "Redis wiped": (redis_wiped, 0),
    "Redis stalled": (stalled("valkey"), 40),
    "Postgres restarted": (down("postgres"), 0),
    "Postgres down": (down("postgres"), 10),
    "Postgres stalled": (stalled("postgres"), 40),
    "both down": (down("postgres", "valkey"), 10),
    "provider fails": (provider_down, 30),
    "a worker killed": (killed(WORKER), 0),
    "relay killed": (killed("relay"), 0),
    "all roles killed": (killed(*ROLES), 0),
    "a worker's host frozen": (stalled(WORKER), 90),
}


def steps(size: Size) -> int:
    return len(_chosen(size)) + 1


def outages(rig: Rig, size: Size, step: Step) -> list[Table]:
    step("starting every role, two workers")
    rig.empty()
    rig.start(*ROLES)
    trickle, stop = Trickle(rig), threading.Event()
    publishing = threading.Thread(target=trickle.run, args=(stop,), daemon=True)
    publishing.start()
    rows = []
    until(lambda: rig.sandbox.counts()["mails"] > SETTLED / SPACING, "the first jobs arrive")
    before = _held(rig)
    for name, (outage, seconds) in _chosen(size).items():
        step(f"{name}, {seconds:g} s")
        rows.append(_measured(rig, trickle, name, outage, seconds))
    known = len(trickle.taken)
    until(lambda: len(_arrived(rig)) > known + 2 * SETTLED / SPACING, "every role works again", every=0.2)
    after = _held(rig)
    stop.set()
    publishing.join()
    with suppress(Unavailable):
        rig.waiting()
    until(lambda: rig.waiting() == 0, "everything is delivered")
    rig.stop(*ROLES)
    notes = [
        f"one job every {SPACING:g} s, two workers; seconds from the end of the outage until the first job arrives that was",
        "published before its end, and until the last of them; a dash: nothing was waiting; log lines of relay and workers",
    ]
    return [Table("Outages", rows, notes), Table("What the roles hold", _compared(before, after), [])]


def _chosen(size: Size) -> Mapping[str, tuple[Outage, float]]:
    """Quick: the short ones."""
    return OUTAGES if size.rounds > 1 else {name: case for name, case in OUTAGES.items() if case[1] <= 10}


def _measured(rig: Rig, trickle: Trickle, name: str, outage: Outage, seconds: float) -> dict[str, object]:
    time.sleep(SETTLED)
    lines, refused, known = _log_lines(rig), trickle.refused, len(trickle.taken)
    outage(rig, seconds)
    ended, due = time.time(), set(trickle.taken)
    until(lambda: due <= set(_arrived(rig)), f"{name}: all that was published before its end arrives", every=0.2)
    arrived = _arrived(rig)
    late = [arrived[job] - ended for job in due if arrived[job] > ended]
    mails = [mail["tags"]["job"] for mail in rig.sandbox.mails()]
    return {
        "outage": name,
        "s": seconds,
        "jobs": len(trickle.taken) - known,
        "first after s": round(min(late), 1) if late else None,
        "last after s": round(max(late), 1) if late else None,
        "publishes refused": trickle.refused - refused,
        "doubled so far": len(mails) - len(set(mails)),
        "log lines": _log_lines(rig) - lines,
    }


def _arrived(rig: Rig) -> dict[str, float]:
    """Job id → when its mail got in, unix seconds."""
    return {mail["tags"]["job"]: datetime.fromisoformat(mail["at"]).timestamp() for mail in rig.sandbox.mails()}


def _log_lines(rig: Rig) -> int:
    logs = rig.machine.data_dir / "logs"
    return sum(
        len(path.read_bytes().splitlines()) for path in logs.glob("*.log") if QUEUE in path.name or "relay" in path.name
    )


def _held(rig: Rig) -> dict[str, dict[str, int]]:
    """Role → threads, descriptors, resident MB; and what the servers hold."""
    held = {
        name: {
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "MB": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20,
        }
        for name, pid in {name: _family(pid)[-1] for name, pid in rig.machine.pids.items()}.items()
    }
    with suppress(Unavailable):  # a session that an outage has ended
        rig.watch("SELECT 1")
    backends = rig.watch("SELECT count(*) FROM pg_stat_activity WHERE usename ~ '^notif_'")[0][0]
    return {**held, "sessions at Postgres": {"count": backends}, "keys on Redis": {"count": int(rig.redis.dbsize())}}


def _compared(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> list[dict[str, object]]:
    return [
        {"what": name, **{f"{part}{when}": side.get(name, {}).get(part) for part in ("threads", "descriptors", "MB", "count")
                          for when, side in ((" before", before), (" after", after))}}
        for name in after
    ]  # fmt: skip


def _family(pid: int) -> list[int]:
    """A process and its descendants, parents first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]
