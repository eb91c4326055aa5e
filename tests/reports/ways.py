"""What several reports need: time that passes, and looks at Redis and at the rows."""

from typing import Any

from notif.adapters.redis_carrier import NAMESPACE, SILENCE
from notif.ports import CarrierPort
from notif.relay import Relay, Route
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

MAIL = {"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}


def passed(notif: Installation, hands: Hands, seconds: float) -> None:
    """Time passes: for rows, closings and what the worker remembers of them."""
    notif.rows(
        "UPDATE core.outbox SET due_at = due_at - w, ready_at = ready_at - w, expires_at = expires_at - w, "
        "claimed_at = claimed_at - w, key_since = key_since - w, unknown_since = unknown_since - w, created_at = created_at - w "
        "FROM make_interval(secs => %s) w",
        seconds,
    )
    notif.rows(
        "UPDATE core.provider_state SET since = since - w, until = until - w, transactional_until = transactional_until - w "
        "FROM make_interval(secs => %s) w",
        seconds,
    )
    hands.clock_offset += max(seconds, 1.1)


def copies(notif: Installation, count: int, **columns: str) -> None:
    """So many copies of the one row in the outbox, each with an id of its own; `columns` are SQL expressions."""
    notif.rows(
        "INSERT INTO core.outbox SELECT (jsonb_populate_record(o, jsonb_build_object('job_id', gen_random_uuid()))).* "
        "FROM core.outbox o, generate_series(1, %s)",
        count,
    )
    if columns:
        notif.rows("UPDATE core.outbox SET " + ", ".join(f"{name} = {value}" for name, value in columns.items()))


def waiting(notif: Installation) -> list[Any]:
    """State and attempts of what is in the outbox."""
    return notif.rows("SELECT state, attempts FROM core.outbox ORDER BY job_id")


def held_by(notif: Installation, broker: str, queue: str = EMAIL) -> int:
    """How many references a process holds unacked."""
    return int(notif.redis.scard(f"{NAMESPACE}:__acks__.{broker}.{queue}"))


def silent(notif: Installation, process: str, queue: str = EMAIL) -> None:
    """It last said something longer ago than a process may be silent; somebody has looked meanwhile."""
    seconds, _ = notif.redis.time()
    notif.redis.zadd(f"{NAMESPACE}:__heartbeats__", {f"{process}.{queue}": seconds - SILENCE - 1})
    notif.redis.set(f"{NAMESPACE}:reaped", str(seconds))


def relay_of(hands: Hands, carrier: CarrierPort | None = None, *queues: str) -> Relay:
    """A relay to poll by hand; a slow provider's window would only make tests longer."""
    routes = [Route(hands.terms(queue), 1000.0) for queue in queues or (EMAIL,)]
    every = hands.app.config.queue_names
    return Relay(hands.outbox, carrier or hands.carrier, routes, all_queues=every, log=hands.app.log, clock=hands.clock)
