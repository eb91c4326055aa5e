"""What this process has claimed, and until when: one renewal for all of it."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from notif.ports import Held, LedgerPort, Reference

RENEWAL = 5.0
"""Seconds between renewals; a lease is 20 s."""


class Leases:
    """Shared by a process' threads. `clock` is monotonic seconds and must run while the host is suspended (CLOCK_BOOTTIME):
    else a sleeper starts a call under a lease that ended long ago."""

    def __init__(self, ledger: LedgerPort, lease: timedelta, clock: Callable[[], float]) -> None:
        self._ledger, self._lease, self._clock = ledger, lease, clock
        self._lock = threading.Lock()
        self._held: dict[tuple[UUID, str, int], Held] = {}

    def now(self) -> float:
        return self._clock()

    def hold(self, ref: Reference, generation: int, max_runtime: timedelta, asked_at: float) -> None:
        """A claim that was asked for at `asked_at`: the lease counts from the asking, never from the answer."""
        held = Held(ref, generation, max_runtime, asked_at + self._lease.total_seconds())
        with self._lock:
            self._held[ref.job_id, ref.queue, generation] = held

    def drop(self, ref: Reference, generation: int) -> None:
        with self._lock:
            self._held.pop((ref.job_id, ref.queue, generation), None)

    def left(self, ref: Reference, generation: int) -> float:
        """Seconds of this claim's lease that are surely left; one process may have lost a job and claimed it again."""
        with self._lock:
            held = self._held.get((ref.job_id, ref.queue, generation))
        return held.ends - self._clock() if held else 0.0

    def renew(self) -> None:
        """One round trip, none if nothing is held. Raises Unavailable."""
        with self._lock:
            claims = list(self._held.values())
        if not claims:
            return
        ends = self._clock() + self._lease.total_seconds()
        renewed = self._ledger.renew(claims, self._lease)
        with self._lock:
            for claim in claims:
                key = (claim.ref.job_id, claim.ref.queue, claim.generation)
                if key in renewed and key in self._held:
                    self._held[key] = replace(claim, ends=ends)
