"""Workers that die, whole or in part: what they held goes on elsewhere in time, and a process is never half alive.

The bounds: unclaimed references are back within 15 s (a heartbeat's silence, 10 s, and two looks of the reaper), claimed ones
within the lease and 5 s.
"""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from notif.adapters.redis_carrier import NAMESPACE
from notif.supervisor import POLL, Role, Supervisor
from tests.kit import ROOT, Installation, eventually
from tests.processes import alive

LEASE, THREADS = 10, 8
UNCLAIMED_WITHIN, CLAIMED_WITHIN = 15.0, LEASE + 5.0


def patient(notif: Installation) -> str:
    """The tests' configuration with calls that outlast the preparations."""
    text = notif.config.read_text().replace("lease: 6s", f"lease: {LEASE}s").replace("deadline: 1s", "deadline: 5s")
    path = notif.folder / "patient.yaml"
    path.write_text(text.replace("../config/templates", str(ROOT / "config" / "templates")))
    return str(path)


def held(notif: Installation) -> int:
    """References that processes hold unacked."""
    keys: Any = notif.redis.keys(f"{NAMESPACE}:__acks__*")
    return sum(int(notif.redis.scard(key)) for key in keys)


def moves(notif: Installation, job: object) -> list[str]:
    """The states a delivered job went through."""
    history = notif.one("SELECT history FROM core.delivery WHERE job_id = %s", job)
    return [move["state"] for move in history]


def test_a_killed_workers_jobs_are_back_in_time(
    notif: Installation, record_property: Callable[[str, object], None]
) -> None:
    notif.relay()
    config = patient(notif)
    dying, other = notif.worker(NOTIF_CONFIG=config), notif.worker(NOTIF_CONFIG=config)
    other.signal(signal.SIGSTOP)  # so that one of them gets all
    notif.sandbox.faults([{"fault": "hold", "times": THREADS}])
    jobs = notif.send_many(2 * THREADS)
    eventually(lambda: held(notif) == 2 * THREADS, what="all of it is prefetched")
    notif.sandbox.wait_for_held(THREADS)
    claimed = {row[0] for row in notif.rows("SELECT job_id FROM core.outbox WHERE state = 'claimed'")}
    assert len(claimed) == THREADS
    dying.kill()
    killed_at = time.monotonic()
    other.signal(signal.SIGCONT)
    notif.sandbox.release()
    back: dict[object, float] = {}

    def look() -> bool:
        for (job,) in notif.rows("SELECT job_id FROM core.delivery"):
            back.setdefault(job, time.monotonic() - killed_at)
        return len(back) == len(jobs)

    eventually(look, within=max(UNCLAIMED_WITHIN, CLAIMED_WITHIN) + 5, what="all are delivered")
    slowest = {"claimed": max(back[job] for job in claimed), "unclaimed": max(back[job] for job in set(jobs) - claimed)}
    for name, seconds in slowest.items():
        record_property(f"back, {name}", round(seconds, 2))
    assert slowest["claimed"] <= CLAIMED_WITHIN
    assert slowest["unclaimed"] <= UNCLAIMED_WITHIN
    for job in set(jobs) - claimed:
        assert moves(notif, job).count("pushed") == 1, "the reaper brought it back, not its timer"
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    eventually(lambda: held(notif) == 0, what="nothing is held for the dead one")


class Watched:
    """A worker under the real supervisor, which is looked after between the test's own looks."""

    def __init__(self, notif: Installation, argv: tuple[str, ...], folder: Path) -> None:
        self._notif, self.log = notif, folder / "worker.log"
        self.events: list[str] = []
        self._supervisor = Supervisor(
            [Role("worker", argv)],
            env=notif.env("notif_worker"),
            log_dir=folder,
            on_event=lambda _, text: self.events.append(text),
        )
        self._supervisor.start()

    def until(self, look: Callable[[], Any], what: str) -> None:
        def polled() -> bool:
            self._supervisor.poll()
            time.sleep(POLL)
            return bool(look())

        eventually(polled, within=90, what=what)

    def until_up(self) -> int:
        """Until the newest process says that it is there; its pid."""
        self.until(lambda: self._own(self.pid), "the worker is up")
        return self.pid

    def _own(self, pid: int) -> bool:
        """Under Dramatiq's command line it is a child of the process we started."""
        beats = {row[0] for row in self._notif.rows("SELECT pid FROM core.process WHERE role = 'worker'")}
        children = Path(f"/proc/{pid}/task/{pid}/children")
        return bool(beats & {pid, *map(int, children.read_text().split() if children.exists() else ())})

    @property
    def pid(self) -> int:
        return self._supervisor.pids().get("worker", 0)

    def stop(self) -> None:
        self._supervisor.stop(40)


OURS = (sys.executable, "-m", "notif", "worker", "loyalty")
DRAMATIQS = (sys.executable, "-m", "dramatiq", "tests.loyalty", "--processes", "1", "--threads", "4")


@pytest.mark.parametrize("argv", [OURS, DRAMATIQS], ids=["notif", "dramatiq"])
@pytest.mark.parametrize("thread", ["worker", "consumer"])
def test_b03_a_process_with_a_dead_thread_ends_and_comes_back(
    loyalty: Installation, tmp_path: Path, argv: tuple[str, ...], thread: str
) -> None:
    loyalty.relay()
    watched = Watched(loyalty, argv, tmp_path / "log")
    try:
        first = watched.until_up()
        jobs = [loyalty.send("points.earned", points=1, answer=f"kill-{thread}-thread")]
        watched.until(lambda: watched.pid not in (0, first), "another process")
        assert not alive(first)
        assert [event for event in watched.events if "ended" in event] == ["ended with code 1; again in 0.1 s"]
        said = [line for line in watched.log.read_text().splitlines() if "threads have died" in line]
        assert len(said) == 1
        assert thread in said[0]
        watched.until_up()
        jobs.append(loyalty.send("points.earned", points=1))
        watched.until(lambda: {loyalty.state(job, "loyalty") for job in jobs} == {"delivered"}, "both are credited")
        assert loyalty.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)], "what was started was finished"
        assert loyalty.admin("SELECT count(*) FROM public.loyalty") == [(2,)]
    finally:
        watched.stop()


def test_a_handler_that_ends_the_process_is_a_failed_attempt(loyalty: Installation) -> None:
    """SystemExit in a thread of ours: the thread lives, the job is retried and given up on, its neighbour is credited."""
    loyalty.relay()
    worker = loyalty.worker("loyalty")
    job = loyalty.send("points.earned", points=1, answer="exit")
    neighbour = loyalty.send("points.earned", points=1)
    loyalty.until(job, "dead", queue="loyalty")
    loyalty.until(neighbour, "delivered", queue="loyalty")
    assert loyalty.rows("SELECT cause, attempts, last_error FROM core.dead_letters") == [
        ("attempts_spent", 5, "SystemExit in the handler")
    ]
    assert worker.alive
    assert "threads have died" not in worker.log.read_text()
