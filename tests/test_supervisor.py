"""Roles are kept running, and nothing of them is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from notif.supervisor import BACKOFF, POLL, STEADY, Role, Supervisor
from tests.processes import alive, kill_and_reap, until


def python(name: str, code: str) -> Role:
    return Role(name, (sys.executable, "-u", "-c", code))


SLEEP = "import os, time; print('hello from', os.getpid()); time.sleep(600)"
STUBBORN = (
    "import signal, subprocess, time; child = subprocess.Popen(['sleep', '600']);"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(child.pid); time.sleep(600)"
)


class Watched:
    """A supervisor, what it said, and a clock that stands unless it is moved."""

    def __init__(self, folder: Path, *roles: Role, standing_clock: bool = False) -> None:
        self.log_dir = folder / "log"
        self.said: list[tuple[str, str]] = []
        self.now = 0.0
        self.supervisor = Supervisor(
            roles,
            env=os.environ | {"GREETING": "hi"},
            log_dir=self.log_dir,
            on_event=lambda role, text: self.said.append((role, text)),
            clock=(lambda: self.now) if standing_clock else time.monotonic,
        )

    def log(self, role: str) -> str:
        file = self.log_dir / f"{role}.log"
        return file.read_text() if file.exists() else ""

    def next_death(self) -> str:
        """Polls until one more role has ended; what was said of it."""
        before = len(self.said)

        def look() -> bool:
            self.supervisor.poll()
            return len(self.said) > before

        until("a role ends", look)
        return self.said[-1][1]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[list[Watched]]:
    made: list[Watched] = []
    yield made
    for one in made:
        one.supervisor.stop(grace=0)


def test_roles_run_with_their_environment_and_their_output_is_appended(tmp_path: Path, watched: list[Watched]) -> None:
    roles = [python(name, "import os; print(os.environ['GREETING'])\n" + SLEEP) for name in ("relay", "web")]
    for _ in range(2):
        one = Watched(tmp_path, *roles)
        watched.append(one)
        one.supervisor.start()
        assert set(one.supervisor.pids()) == {"relay", "web"}
        line = f"hi\nhello from {one.supervisor.pids()['relay']}\n"
        until("the relay speaks", lambda: watched[-1].log("relay").endswith(line))  # noqa: B023
        assert ("relay", f"started, pid {one.supervisor.pids()['relay']}") in one.said
        one.supervisor.stop(grace=30)
        assert one.supervisor.pids() == {}
    assert watched[0].log("relay").count("hi") == 2


def test_a_killed_role_is_put_back_while_the_others_go_on(tmp_path: Path, watched: list[Watched]) -> None:
    one = Watched(tmp_path, python("worker", SLEEP), python("relay", SLEEP))
    watched.append(one)
    one.supervisor.start()
    before = one.supervisor.pids()
    stop = threading.Event()

    def interfere() -> None:
        os.kill(before["worker"], signal.SIGKILL)
        try:
            until(
                "the worker is back", lambda: one.supervisor.pids().get("worker", before["worker"]) != before["worker"]
            )
        finally:
            stop.set()

    other = threading.Thread(target=interfere)
    other.start()
    one.supervisor.watch(stop)  # in the main thread, as its children end with their thread
    other.join()
    after = one.supervisor.pids()
    assert after["worker"] != before["worker"]
    assert after["relay"] == before["relay"]
    assert ("worker", f"killed by SIGKILL; again in {BACKOFF[0]:g} s") in one.said


def test_it_never_gives_up_and_is_never_slower_than_two_seconds(tmp_path: Path, watched: list[Watched]) -> None:
    one = Watched(tmp_path, python("broken", "import sys; print('no'); sys.exit(3)"), standing_clock=True)
    watched.append(one)
    one.supervisor.start()
    for wait in (*BACKOFF, BACKOFF[-1], BACKOFF[-1]):
        assert wait + POLL < 2
        assert one.next_death() == f"ended with code 3; again in {wait:g} s"
        one.supervisor.poll()
        assert one.supervisor.pids() == {}, "it did not wait"
        one.now += wait
        one.supervisor.poll()
        assert one.said[-1][1].startswith("started, pid ")
    one.now += STEADY
    assert one.next_death() == f"ended with code 3; again in {BACKOFF[0]:g} s"


def test_a_role_that_cannot_be_started_is_tried_again(tmp_path: Path, watched: list[Watched]) -> None:
    one = Watched(tmp_path, Role("typo", ("no-such-command",)), python("web", SLEEP), standing_clock=True)
    watched.append(one)
    (one.log_dir / "web.log").mkdir(parents=True)  # no file can be written there
    one.supervisor.start()
    assert one.said[-1] == (
        "web",
        f"cannot be started: [Errno 21] Is a directory: '{one.log_dir}/web.log'; again in 0.1 s",
    )
    assert one.next_death() == "ended with code 1; again in 0.1 s"
    assert "Error: [Errno" in one.log("typo")  # no such file, or a folder of PATH that is somebody else's
    (one.log_dir / "web.log").rmdir()
    one.now += 0.1
    one.supervisor.poll()
    assert "web" in one.supervisor.pids()


def test_stop_asks_first_and_kills_what_does_not_listen_with_its_children(
    tmp_path: Path, watched: list[Watched]
) -> None:
    polite = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('bye')));" + SLEEP
    one = Watched(tmp_path, python("polite", polite), python("stubborn", STUBBORN))
    watched.append(one)
    one.supervisor.start()
    until("both speak", lambda: one.log("polite").endswith("\n") and one.log("stubborn").endswith("\n"))
    grandchild = int(one.log("stubborn"))
    assert alive(grandchild)
    one.supervisor.stop(grace=0.5)
    assert one.log("polite").endswith("bye\n")
    assert one.said[-2:] == [("polite", "stopped"), ("stubborn", "still running after 0.5 s: killed")]
    until("the grandchild ends", lambda: not alive(grandchild))


def test_children_of_a_dead_role_do_not_work_on(tmp_path: Path, watched: list[Watched]) -> None:
    one = Watched(tmp_path, python("stubborn", STUBBORN), standing_clock=True)
    watched.append(one)
    one.supervisor.start()
    until("it speaks", lambda: one.log("stubborn").endswith("\n"))
    os.kill(one.supervisor.pids()["stubborn"], signal.SIGKILL)
    one.next_death()
    until("the grandchild ends", lambda: not alive(int(one.log("stubborn"))))


def test_roles_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading; from pathlib import Path; from notif.supervisor import Role, Supervisor\n"
        "role = Role('relay', (sys.executable, '-c', 'import time; time.sleep(600)'))\n"
        "supervisor = Supervisor([role], env=os.environ, log_dir=Path(sys.argv[1]), on_event=lambda *_: None)\n"
        "supervisor.start(); print(supervisor.pids()['relay'], flush=True); supervisor.watch(threading.Event())"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid = int(process.stdout.readline())
    assert alive(pid)
    kill_and_reap(process)
    until("the role ends", lambda: not alive(pid))
