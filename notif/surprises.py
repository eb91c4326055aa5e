"""Unexpected errors in a row: one is left to its job's timer, ten are an alarm."""

import threading

ALARM = 10
"""So many surprises in a row, without one reference handled in between, are told to a person."""


class Surprises:
    """Counted per process, by all of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._row = 0
        self._last = ""

    def one(self, error: Exception) -> None:
        with self._lock:
            self._row += 1
            self._last = type(error).__name__

    def none(self) -> None:
        """A reference was handled as it should be."""
        self._row = 0

    @property
    def trouble(self) -> str:
        """What a person should know; empty: nothing."""
        with self._lock:
            return f"{self._row} unexpected errors in a row, the latest {self._last}" if self._row >= ALARM else ""
