"""What stands against a provider call right now: the process' memory of `core.provider_state`."""

import threading
from collections.abc import Callable

from notif.lanes import Lane, parse_queue
from notif.ports import Closing, ClosingsPort, Stop

MEMORY_AGE = 1.0
"""Seconds a memory may be old when a call starts; older, it is read anew."""
REFRESH = 0.25
"""Seconds between two readings in the background."""


class Closings:
    """Shared by a process' threads. `clock` is monotonic seconds and runs while the host sleeps."""

    def __init__(self, store: ClosingsPort, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._closings: list[Closing] = []

    def refresh(self) -> None:
        """Read anew. Raises Unavailable."""
        started = self._clock()
        closings = self._store.read()
        with self._lock:
            if started >= self._read_at:
                self._closings, self._read_at = closings, started

    def circuit(self, provider: str) -> bool:
        """Whether its circuit is open, as this process remembers."""
        with self._lock:
            return any(closing.provider == provider and closing.state == "circuit" for closing in self._closings)

    def fresh(self) -> bool:
        """Whether Postgres answered lately: without it nothing is fetched."""
        return self._clock() - self._read_at < 2 * MEMORY_AGE

    def close(self, closing: Closing) -> None:
        """For everybody: in Postgres, and in this process' memory at once."""
        self._store.close(closing)
        self.refresh()

    def against(self, provider: str, queue: str, domain: str, probe: bool = False) -> Stop | None:
        """What forbids a call of this queue now, in a memory no older than `MEMORY_AGE`. Raises Unavailable.

        Neither circuit nor halt does whose probe is due (the claim decides who that is), nor to a `probe`.
        """
        if self._clock() - self._read_at > MEMORY_AGE:
            self.refresh()
        with self._lock:
            closings, passed = self._closings, self._clock() - self._read_at
        for closing in sorted(closings, key=lambda c: c.domain):
            if closing.provider == provider and closing.domain in ("", domain):
                seconds, due = seconds_left(closing, queue), closing.probe_seconds
                if due is not None and (probe or due <= passed):
                    continue
                if seconds is None or seconds > passed:
                    verdict = "domain_halted" if closing.domain else closing.state
                    return Stop(verdict, None if seconds is None else seconds - passed, closing.reason)
        return None


def seconds_left(closing: Closing, queue: str) -> float | None:
    """A 429 holds the transactional lane for less; a circuit holds both until its probe. None: until a person resumes it."""
    if closing.state == "circuit":
        return closing.probe_seconds
    parsed = parse_queue(queue)
    return closing.transactional_seconds if parsed and parsed[1] is Lane.TRANSACTIONAL else closing.seconds


def halt(provider: str, domain: str, reason: str) -> Closing:
    """A closing that a person ends, or a probe: one a minute."""
    return Closing(provider, domain, "halted", reason, None, None)


def throttle(provider: str, reason: str, seconds: float, transactional_seconds: float) -> Closing:
    """A closing after a 429: transactional waits at most until the provider's window resets."""
    return Closing(provider, "", "closed", reason, seconds, min(seconds, transactional_seconds))


def quota(provider: str, reason: str, seconds: float) -> Closing:
    """A closing until a quota resets, for both lanes."""
    return throttle(provider, reason, seconds, seconds)
