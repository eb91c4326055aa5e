"""A rolling restart: every process of the product in turn, the next one when the last is there again, or too slow."""

import threading
import time
from collections.abc import Callable, Sequence

LOOK = 0.1
"""Seconds between two looks whether a process is there again."""
PATIENCE = 5.0
"""Seconds until the next one's turn all the same: what a process needs to start may be what another fault has taken away."""


class RollingRestart:
    """A thread. `terminate` a process; answers its pid, None if it isn't running. `back`: another one works in its place."""

    def __init__(
        self,
        names: Sequence[str],
        terminate: Callable[[str], int | None],
        back: Callable[[str, int | None], bool],
        on_event: Callable[[str, str], None],
    ) -> None:
        self._names, self._terminate, self._back, self._on_event = names, terminate, back, on_event
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rolling restart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Whatever is still to come is left out."""
        self._over.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        done = 0
        for name in self._names:
            pid = self._terminate(name)
            end = time.monotonic() + PATIENCE
            while not self._back(name, pid) and time.monotonic() < end and not self._over.wait(LOOK):
                pass
            if self._over.is_set():
                break
            done += 1
        self._on_event("rolling restart", f"{done} of {len(self._names)} had their turn")
