"""What this process has claimed, and until when: one renewal for all of it."""

import threading
from collections.abc import Callable
from uuid import UUID

from notif.ports import LedgerPort, Reference, Terms

RENEWAL = 5.0
"""Seconds between renewals; a lease is 20 s."""


class Leases:
    """Shared by a process' threads. `clock` is monotonic seconds and must run while the host is suspended (CLOCK_BOOTTIME):
    else a sleeper starts a call under a lease that ended long ago."""

    def __init__(self, ledger: LedgerPort, terms: Terms, clock: Callable[[], float]) -> None:
        self._ledger, self._terms, self._clock = ledger, terms, clock
        self._lock = threading.Lock()
        self._held: dict[tuple[UUID, str], tuple[Reference, int, float]] = {}

    def now(self) -> float:
        return self._clock()

    def hold(self, ref: Reference, generation: int, asked_at: float) -> None:
        """A claim that was asked for at `asked_at`: the lease counts from the asking, never from the answer."""
        with self._lock:
            self._held[ref.job_id, ref.queue] = (ref, generation, asked_at + self._terms.lease.total_seconds())

    def drop(self, ref: Reference) -> None:
        with self._lock:
            self._held.pop((ref.job_id, ref.queue), None)

    def left(self, ref: Reference) -> float:
        """Seconds of the lease that are surely left."""
        with self._lock:
            held = self._held.get((ref.job_id, ref.queue))
        return held[2] - self._clock() if held else 0.0

    def renew(self) -> None:
        """One round trip, none if nothing is held. Raises Unavailable."""
        with self._lock:
            claims = [(ref, generation) for ref, generation, _ in self._held.values()]
        if not claims:
            return
        asked_at = self._clock()
        renewed = self._ledger.renew(claims, self._terms)
        end = asked_at + self._terms.lease.total_seconds()
        with self._lock:
            for ref, generation in claims:
                key = (ref.job_id, ref.queue)
                held = self._held.get(key)
                if key in renewed and held and held[1] == generation:
                    self._held[key] = (ref, generation, end)
