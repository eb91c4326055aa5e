"""Things a process does every so often, each on a thread of its own: a slow one delays no other."""

import threading
from collections.abc import Callable

from notif.errors import Unavailable
from notif.ports import Log


class Periodic:
    """Runs `work` every `seconds` until stopped. Says once that it fails, and once that it works again."""

    def __init__(self, name: str, seconds: float, work: Callable[[], object], log: Log) -> None:
        self._name, self._seconds, self._work, self._log = name, seconds, work, log
        self._stop = threading.Event()
        self._failing = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        self._stop.set()
        self.thread.join(timeout)

    def _run(self) -> None:
        while True:
            self.once()
            if self._stop.wait(self._seconds):
                return

    def once(self) -> None:
        """One turn; never raises."""
        try:
            self._work()
        except Unavailable as error:
            if not self._failing:
                self._log.warning(f"{self._name} waits", error=str(error))
            self._failing = True
        except Exception:  # noqa: BLE001 - logged; a background task must outlive its surprises
            if not self._failing:
                self._log.exception(f"{self._name} failed")
            self._failing = True
        else:
            if self._failing:
                self._log.info(f"{self._name} goes on")
            self._failing = False
