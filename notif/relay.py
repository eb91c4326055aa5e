"""The relay: the only one that puts references on queues. One loop per lane, and one for the queues without a lane."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from notif.errors import Unavailable
from notif.ports import CarrierPort, Log, OutboxPort, Reference, Terms, Turn

POLL = 0.025
"""Seconds between two polls, pushing or not."""
SWEEP = 30.0
"""Seconds between two looks at everything, whatever the watermark says."""
EPOCH_CHECK = 0.25
"""Seconds between two looks whether Redis was wiped, while something is out and nothing is pushed."""
AWAY_WAIT = 0.5
"""Seconds between two tries while Redis or Postgres does not answer."""
STARTING = "starting"
WINDOW_SECONDS = 0.5
"""Outstanding per queue is so much work: what waits in Redis can't be paused, cancelled or put in turn."""
FULL_WAIT = WINDOW_SECONDS / 5
"""Seconds until a window that a provider's rate fills is looked at again: at that rate it is not empty
sooner, and counting it costs."""


NOBODY = UUID(int=0)
"""Before every tenant: where a turn begins."""


@dataclass(frozen=True)
class Route:
    """One queue as the relay sees it. `rate`: its provider's requests per second; None without a provider."""

    terms: Terms
    rate: float | None


@dataclass
class _Place:
    """Where this relay is on one queue."""

    after: UUID = NOBODY
    watermark: datetime | None = None
    swept_at: float = float("-inf")
    full_until: float = float("-inf")
    pushed: deque[float] = field(default_factory=deque)


class Relay:
    """Drive it with `poll`. `all_queues`: those of every relay on this Redis. `clock` is monotonic seconds."""

    def __init__(
        self,
        outbox: OutboxPort,
        carrier: CarrierPort,
        routes: Sequence[Route],
        *,
        all_queues: Sequence[str],
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._outbox, self._carrier, self._routes, self._log, self._clock = outbox, carrier, routes, log, clock
        self._all_queues = list(all_queues)
        self._places = {route.terms.queue: _Place() for route in routes}
        self._queues = [route.terms.queue for route in routes]
        self._epoch_checked_at = float("-inf")
        self._away = STARTING

    def poll(self) -> float:
        """One turn over all queues; the seconds to wait until the next."""
        try:
            if self._away:
                self._return()
            self._turn()
        except Unavailable as error:
            if self._away in ("", STARTING):
                self._log.warning("relay waits", queues=self._queues, error=str(error))
            self._away = str(error)
            return AWAY_WAIT
        return POLL

    def _return(self) -> None:
        """This relay begins, or Redis or Postgres was away: what was pushed may never have arrived, so it is due at once."""
        intact = self._carrier.alive()
        self._outbox.requeue(self._queues if intact else self._all_queues)
        if self._away != STARTING:
            self._log.info("relay goes on", queues=self._queues)
        self._away = ""

    def _turn(self) -> None:
        now = self._clock()
        self._sweep(now)
        routes = [route for route in self._routes if self._places[route.terms.queue].full_until <= now]
        if not routes:
            return
        turns = [self._next(route, now) for route in routes]
        picked = self._outbox.pick(turns)
        for queue, tenant in picked.after.items():
            self._places[queue].after = tenant
        for route, turn in zip(routes, turns, strict=True):
            if route.rate is not None and picked.out_after(turn.terms.queue) >= turn.window:
                self._places[turn.terms.queue].full_until = now + FULL_WAIT
        if picked.refs:
            self._push(picked.refs, now)
        elif picked.outstanding and now - self._epoch_checked_at >= EPOCH_CHECK:
            self._epoch_checked_at = now
            if not self._carrier.alive():
                self._wiped()

    def _push(self, refs: list[Reference], now: float) -> None:
        for ref in refs:
            self._places[ref.queue].pushed.append(now)
        try:
            intact = self._carrier.push(refs)
        except Unavailable:
            # Committed, perhaps not pushed: due at once, or it would wait out its 20 s timer.
            self._outbox.requeue(sorted({ref.queue for ref in refs}))
            raise
        if not intact:
            self._wiped()

    def _wiped(self) -> None:
        # The epoch is everybody's, and it is set again by now: no other relay will notice.
        due = self._outbox.requeue(self._all_queues)
        self._log.warning("Redis was wiped", due_at_once=due)

    def _sweep(self, now: float) -> None:
        for queue, place in self._places.items():
            if now - place.swept_at >= SWEEP:
                place.watermark, place.swept_at = self._outbox.sweep(queue), now

    def _next(self, route: Route, now: float) -> Turn:
        place = self._places[route.terms.queue]
        while place.pushed and place.pushed[0] <= now - 1.0:
            place.pushed.popleft()
        # Without a provider: its measured throughput, what was pushed in the last second.
        window = (
            max(16, int(len(place.pushed) * WINDOW_SECONDS))
            if route.rate is None
            else max(4, int(route.rate * WINDOW_SECONDS))
        )
        return Turn(route.terms, window, place.after, place.watermark)
