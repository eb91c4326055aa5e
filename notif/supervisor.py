"""Runs every role of one machine as a process of its own, and puts a dead one back."""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from notif.process import tied

POLL = 0.1
"""Seconds between two looks at the processes."""
BACKOFF = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds a role that died waits for its restart: longer each time, with POLL always under 2 s, and for ever."""
STEADY = 10.0
"""Seconds after which a role counts as up, and its next death as its first."""


@dataclass(frozen=True, slots=True)
class Role:
    """One process: a name for logs and `ps`, and its command line."""

    name: str
    argv: tuple[str, ...]


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    started_at: float = 0.0
    start_at: float = -math.inf


class Supervisor:
    """Start, watch and stop roles. Use it from the main thread: its children end with the thread that started them.

    What the processes write is appended to `log_dir/<role>.log`. `on_event(role, text)` hears of every start and end.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        env: Mapping[str, str],
        log_dir: Path,
        on_event: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = {role: _Child() for role in roles}
        self._env = dict(env)
        self._log_dir = log_dir
        self._on_event = on_event
        self._clock = clock

    def start(self) -> None:
        """Start every role."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self.poll()

    def watch(self, stop: threading.Event) -> None:
        """Keep them running until `stop` is set."""
        while not stop.wait(POLL):
            self.poll()

    def poll(self) -> None:
        """One look: notice the dead, start those whose turn it is."""
        for role, child in self._children.items():
            if child.process is not None and child.process.poll() is not None:
                self._bury(role, child, child.process)
            if child.process is None and self._clock() >= child.start_at:
                self._spawn(role, child)

    def pids(self) -> dict[str, int]:
        """The processes that run, by role."""
        return {
            role.name: child.process.pid
            for role, child in self._children.items()
            if child.process is not None and child.process.poll() is None
        }

    def stop(self, grace: float) -> None:
        """SIGTERM to all, `grace` seconds for them together to finish, SIGKILL to what is left."""
        running = [(role, child.process) for role, child in self._children.items() if child.process is not None]
        for _, process in running:
            process.terminate()
        end = self._clock() + grace
        for role, process in running:
            try:
                process.wait(max(0.0, end - self._clock()))
            except subprocess.TimeoutExpired:
                self._on_event(role.name, f"still running after {grace:g} s: killed")
                _signal_group(process, signal.SIGKILL)
                process.wait()
            else:
                self._on_event(role.name, "stopped")
            _signal_group(process, signal.SIGKILL)
        for child in self._children.values():
            child.process = None

    def _spawn(self, role: Role, child: _Child) -> None:
        try:
            with open(self._log_dir / f"{role.name}.log", "ab") as log:
                child.process = subprocess.Popen(  # noqa: S603
                    tied(role.argv, signal.SIGTERM),
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C comes to us, and from us as SIGTERM, once
                )
        except OSError as error:  # no memory, no disk, too many files: it may pass
            self._postpone(role, child, f"cannot be started: {error}")
            return
        child.started_at = self._clock()
        self._on_event(role.name, f"started, pid {child.process.pid}")

    def _bury(self, role: Role, child: _Child, process: subprocess.Popen[bytes]) -> None:
        # Its own children, if it had any, must not work on beside the next one's.
        _signal_group(process, signal.SIGTERM)
        child.process = None
        if self._clock() - child.started_at >= STEADY:
            child.deaths = 0
        code = process.returncode
        self._postpone(
            role, child, f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )

    def _postpone(self, role: Role, child: _Child, what: str) -> None:
        wait = BACKOFF[min(child.deaths, len(BACKOFF) - 1)]
        child.deaths += 1
        child.start_at = self._clock() + wait
        self._on_event(role.name, f"{what}; again in {wait:g} s")


def _signal_group(process: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left (macOS says: not permitted)
        os.killpg(process.pid, sig)
