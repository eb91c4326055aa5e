"""A process that has lost a thread ends, for its supervisor to start another."""

import os
import sys
import threading
from collections.abc import Callable, Mapping

from notif.ports import Log

DEATH_WATCH = 0.5
"""Seconds between two looks whether every thread of the process lives."""
LAST_CHANCE = 10.0
"""Seconds a process with a dead thread gets beyond its drain; then it ends as it is."""


class DeathWatch:
    """It would go on, but slower, or not at all.

    A dead consumer is a queue nobody reads; a worker thread less is a share of the pace; eight less are a process that does
    nothing and looks healthy. What the others have started is finished first, and what is prefetched goes back.
    """

    def __init__(
        self, threads: Callable[[], Mapping[str, threading.Thread]], stop: Callable[[], None], *, drain: float, log: Log
    ) -> None:
        """`threads`: those there should be, by name. `stop`: end in good order, within `drain` seconds if all is well."""
        self._threads, self._stop, self._drain, self._log = threads, stop, drain, log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="death watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The process ends in good order: threads may end now."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(DEATH_WATCH):
            dead = [name for name, thread in self._threads().items() if not thread.is_alive()]
            if dead and not self._over.is_set():
                self._log.error(
                    "threads have died: the process ends, for its supervisor to start it again", threads=dead
                )
                drain = threading.Thread(target=self._drained, daemon=True)
                drain.start()
                drain.join(self._drain + LAST_CHANCE)  # Redis may be away: then the reaper gives back what is left
                sys.stderr.flush()
                os._exit(1)

    def _drained(self) -> None:
        try:
            self._stop()
        except Exception:  # noqa: BLE001 - logged; the process ends either way
            self._log.exception("the drain of a process with dead threads failed")
