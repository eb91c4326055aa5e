"""Roles that run under supervision on a thread of their own, each to be started and stopped by itself."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from notif.errors import NotFound, Unavailable, nearest
from notif.supervisor import POLL, Role, Supervisor

START = 10.0
"""Seconds until a process must exist."""


class Crew:
    """`add` roles, `start` and `stop` them by name; what dies is put back until `close`."""

    def __init__(self, log_dir: Path, on_event: Callable[[str, str], None]) -> None:
        self._log_dir, self._on_event = log_dir, on_event
        self._supervisors: dict[str, Supervisor] = {}
        self._wanted: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        # Processes end with the thread that started them: this one lives as long as the crew, whoever calls `start`.
        self._thread = threading.Thread(target=self._watch, name="crew", daemon=True)
        self._thread.start()

    def __contains__(self, name: object) -> bool:
        return name in self._supervisors

    def add(self, role: Role, env: Mapping[str, str]) -> None:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._supervisors[role.name] = Supervisor([role], env=env, log_dir=self._log_dir, on_event=self._on_event)

    def start(self, names: Iterable[str]) -> dict[str, int]:
        """Start what is not running; pids by name. Raises NotFound, Unavailable (no process within 10 s)."""
        asked = [self._known(name) for name in names]
        with self._lock:
            self._wanted.update(asked)
        end = time.monotonic() + START
        while missing := set(asked) - set(pids := self.pids()):
            if time.monotonic() > end:
                raise Unavailable(f"{', '.join(sorted(missing))}: no process could be started; see {self._log_dir}")
            time.sleep(0.01)
        return {name: pids[name] for name in asked}

    def stop(self, names: Iterable[str], grace: float) -> None:
        """SIGTERM to all of them at once, `grace` seconds for each to finish, SIGKILL to what is left."""
        asked = [self._known(name) for name in names]
        with self._lock:
            self._wanted.difference_update(asked)
        for name in asked:
            self._signal(name, signal.SIGTERM)
        for name in asked:
            self._supervisors[name].stop(grace)

    def kill(self, name: str, number: int) -> int:
        """Send a signal; the pid it went to. Raises NotFound: no such role, or it isn't running."""
        pid = self._signal(self._known(name), number)
        if pid is None:
            raise NotFound(f"role {name!r} isn't running")
        return pid

    def pids(self) -> dict[str, int]:
        """The processes that run, by role."""
        return {name: pid for each in self._supervisors.values() for name, pid in each.pids().items()}

    def close(self) -> None:
        """No role is put back any more. Stop them first."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL):
            with self._lock:
                for name in self._wanted:
                    self._supervisors[name].poll()

    def _signal(self, name: str, number: int) -> int | None:
        pid = self._supervisors[name].pids().get(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def _known(self, name: str) -> str:
        if name not in self._supervisors:
            raise NotFound(f"role {name!r} is not of this machine; {nearest(name, self._supervisors)}")
        return name
