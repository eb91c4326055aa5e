"""What happens ten thousand times is told a few times, with how often: the first at once, the others counted."""

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

FIRST, LONGEST = 30.0, 300.0
"""Seconds in which what was told is only counted: doubled while it goes on, so an hour of anything is some 15 lines."""
MOST = 256
"""Kinds of things that are told apart at a time; what exceeds them is counted together."""
OTHERS = "others"

T = TypeVar("T")
Later = Callable[[float, Callable[[], None]], None]
"""Calls, after so many seconds."""


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """One to be told; `left_out` others of its kind came before it untold, the first of them `seconds` ago."""

    item: T
    left_out: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Kind(Generic[T]):
    until: float
    last: float
    length: float = FIRST
    counted: int = 0
    since: float = 0.0
    latest: T | None = None


def on_a_thread(seconds: float, call: Callable[[], None]) -> None:
    """Later: there is a thread only while something is counted."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class Repeats(Generic[T]):
    """Decides what is told; `tell` hears of what was counted and not told when its time is over. Safe for any thread.

    A kind that has been silent for FIRST seconds starts anew: its next one is told at once.
    """

    def __init__(self, tell: Callable[[Told[T]], None], clock: Callable[[], float], later: Later) -> None:
        """`clock`: seconds, never back."""
        self._tell, self._clock, self._later = tell, clock, later
        self._kinds: dict[Hashable, _Kind[T]] = {}
        self._lock = threading.Lock()
        self._armed = False

    def one(self, key: Hashable, item: T) -> Told[T] | None:
        """What is to be told of it now; None: it was counted."""
        now = self._clock()
        with self._lock:
            key, kind = self._known(key, now)
            if kind is None:
                self._kinds[key] = _Kind(now + FIRST, now)
                return Told(item)
            silent, kind.last = self._silent(kind, now), now
            if silent or now >= kind.until:
                told = Told(item, kind.counted, now - kind.since if kind.counted else 0.0)
                self._next(kind, FIRST if silent else min(2 * kind.length, LONGEST), now)
                return told
            kind.since = kind.since if kind.counted else now
            kind.counted += 1
            kind.latest = item
            arm, self._armed = not self._armed, True
        if arm:
            self._later(FIRST, self.turn)
        return None

    def turn(self) -> None:
        """Tell what has been counted long enough, and come again while something is."""
        now = self._clock()
        with self._lock:
            due = self._counted(now, lambda kind: now >= kind.until or self._silent(kind, now))
            self._armed = arm = any(kind.counted for kind in self._kinds.values())
        self._tell_all(due)
        if arm:
            self._later(FIRST, self.turn)

    def rest(self) -> None:
        """Tell all that was counted: the process ends."""
        with self._lock:
            due = self._counted(self._clock(), lambda _: True)
        self._tell_all(due)

    def _tell_all(self, due: list[Told[T]]) -> None:
        for told in due:
            with suppress(OSError, ValueError):  # a stream that is full, gone or closed hears no more of it
                self._tell(told)

    def _counted(self, now: float, over: Callable[[_Kind[T]], bool]) -> list[Told[T]]:
        found = []
        for kind in self._kinds.values():
            if kind.latest is not None and over(kind):
                found.append(Told(kind.latest, kind.counted - 1, now - kind.since))
                self._next(kind, min(2 * kind.length, LONGEST), now)
        return found

    def _known(self, key: Hashable, now: float) -> tuple[Hashable, _Kind[T] | None]:
        if key not in self._kinds and len(self._kinds) >= MOST:
            gone = [each for each, kind in self._kinds.items() if not kind.counted and self._silent(kind, now)]
            for each in gone:
                del self._kinds[each]
            key = key if gone else OTHERS
        return key, self._kinds.get(key)

    @staticmethod
    def _silent(kind: _Kind[T], now: float) -> bool:
        return now - kind.last >= FIRST

    @staticmethod
    def _next(kind: _Kind[T], length: float, now: float) -> None:
        kind.length, kind.until, kind.counted, kind.latest = length, now + length, 0, None
