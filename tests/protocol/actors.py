"""The real worker and relay code, stopped at every call it makes to the outside, so that a schedule can come between."""

import threading
from collections.abc import Callable


class Killed(BaseException):
    """Raised inside an actor whose process is killed; BaseException, so that no `except Exception` of ours survives it."""


class Actor:
    """A thread that runs only while the driver waits for it: from one `point` to the next, never beside another."""

    def __init__(self) -> None:
        self.at = ""
        """The point it has come to; empty: it has nothing to do."""
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._killed = False
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], object]) -> None:
        """Run `work` up to its first point. What it raises is raised here, and in `step`."""
        assert not self.at
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """From this point to the next, or to the end."""
        assert self.at
        self._go.release()
        self._wait()

    def point(self, name: str) -> None:
        """Called by the work: anything may happen before it goes on."""
        self.at = name
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """As `kill -9` would: nothing more is done."""
        if self.at:
            self._killed = True
            self.step()
        self._killed = False

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        self.at = ""
        self._back.release()

    def _wait(self) -> None:
        self._back.acquire()
        if not self.at and self._thread:
            self._thread.join()
            self._thread = None
        if self._error:
            error, self._error = self._error, None
            raise error
