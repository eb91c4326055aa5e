"""Every request that came, and those that are being held."""

import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from notif.sandbox.mailbox import iso

MOST = 200_000
"""Requests kept at most; the oldest go first."""


class Abandoned(Exception):
    """The sandbox stopped, or was reset, while the request waited: no effect, no answer."""


@dataclass(slots=True)
class Entry:
    """One request. `status` None: not answered, or not yet; `held`: waits for a release."""

    n: int
    at: float
    method: str
    path: str
    key: str | None
    body_hash: str
    fault: str | None
    status: int | None = None
    held: bool = False

    def view(self) -> dict[str, Any]:
        names = ("method", "path", "key", "body_hash", "fault", "status", "held")
        return {"n": self.n, "at": iso(self.at), **{name: getattr(self, name) for name in names}}


class Log:
    """The last 200,000 requests, numbered from 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=MOST)
        self._last = 0

    def add(self, entry: Entry) -> Entry:
        """Numbers it."""
        with self._lock:
            self._last = entry.n = self._last + 1
            self._entries.append(entry)
        return entry

    def after(self, n: int) -> list[dict[str, Any]]:
        """Those with a number above `n`, in the order they came."""
        with self._lock:
            first = self._entries[0].n if self._entries else 0
            return [entry.view() for entry in islice(self._entries, max(0, n + 1 - first), None)]

    def count(self) -> int:
        with self._lock:
            return self._last

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._last = 0


@dataclass(eq=False, slots=True)
class _Wait:
    entry: Entry
    goes_on: bool = False
    abandoned: bool = False


class Holds:
    """Requests that wait: held ones for a release, slow ones for a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: set[_Wait] = set()
        self._closed = False

    def wait(self, entry: Entry, seconds: float | None = None) -> None:
        """Until released, or for `seconds` if given. Raises Abandoned."""
        wait = _Wait(entry, abandoned=self._closed)
        with self._changed:
            entry.held = seconds is None
            self._waits.add(wait)
            self._changed.wait_for(lambda: wait.goes_on or wait.abandoned, timeout=seconds)
            self._waits.discard(wait)
            entry.held = False
        if wait.abandoned:
            raise Abandoned

    def release(self) -> int:
        """Let the held ones go on; how many there were."""
        with self._changed:
            held = [wait for wait in self._waits if wait.entry.held]
            for wait in held:
                wait.goes_on, wait.entry.held = True, False
            self._changed.notify_all()
        return len(held)

    def abandon(self, *, close: bool = False) -> None:
        """End all that wait, without effect or answer; with `close` all that come later too."""
        with self._changed:
            self._closed = self._closed or close
            for wait in self._waits:
                wait.abandoned = True
            self._changed.notify_all()

    def count(self) -> int:
        """How many are held."""
        with self._changed:
            return sum(wait.entry.held for wait in self._waits)
