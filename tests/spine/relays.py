"""What a Relay is driven with in tests: a clock, ways to lose things, and looks at Redis."""

import json
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from notif.adapters.redis_carrier import NAMESPACE
from notif.errors import Unavailable
from notif.ports import CarrierPort, OutboxPort, Reference, Turn
from notif.relay import Relay
from tests.kit import EMAIL, Installation

Made = Callable[..., Relay]
"""Makes a relay; takes its provider's rate and its queue."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Leaky(CarrierPort):
    """The real carrier, whose next pushes don't reach Redis."""

    def __init__(self, real: CarrierPort) -> None:
        self.real, self.lost, self.pushed = real, 0, list[Reference]()

    def push(self, refs: Sequence[Reference]) -> bool:
        if self.lost:
            self.lost -= 1
            raise Unavailable("Redis does not answer")
        self.pushed += refs
        return self.real.push(refs)

    def alive(self) -> bool:
        return self.real.alive()


class Counting(OutboxPort):
    """The real outbox, and how often it was asked. `ahead`: so much later it was, by Postgres' clock, when it was swept."""

    def __init__(self, real: OutboxPort) -> None:
        self.real, self.sweeps, self.picks = real, 0, 0
        self.ahead = timedelta()

    def pick(self, turns: Sequence[Turn]) -> Any:
        self.picks += 1
        return self.real.pick(turns)

    def requeue(self, queues: Sequence[str]) -> int:
        return self.real.requeue(queues)

    def sweep(self, queue: str) -> datetime:
        self.sweeps += 1
        return self.real.sweep(queue) + self.ahead


def on_redis(notif: Installation, queue: str = EMAIL) -> list[str]:
    """Message ids in the order of the queue."""
    return [identifier.decode() for identifier in notif.redis.lrange(f"{NAMESPACE}:{queue}", 0, -1)]  # type: ignore[union-attr]


def tenants_on_redis(notif: Installation) -> list[uuid.UUID]:
    bodies = [notif.redis.hget(f"{NAMESPACE}:{EMAIL}.msgs", identifier) for identifier in on_redis(notif)]
    return [uuid.UUID(json.loads(body)["args"][1]) for body in bodies if isinstance(body, bytes)]


def settled(notif: Installation, count: int) -> None:
    """Workers end the `count` oldest of what is out."""
    gone = [identifier.split(":")[0] for identifier in on_redis(notif)[:count]]
    notif.redis.ltrim(f"{NAMESPACE}:{EMAIL}", count, -1)
    notif.rows("DELETE FROM core.outbox WHERE job_id = ANY (%s::uuid[])", gone)
