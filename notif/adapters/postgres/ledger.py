"""LedgerPort: what a worker reads and writes of a row. Every method is one round trip, but `work`."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from notif.adapters.postgres.database import Database, storable
from notif.envelope import Envelope
from notif.errors import InvalidEnvelope, Unavailable
from notif.ports import GONE, Claimed, Gated, Held, PoisonedRow, Reference, Session, Settlement, Stop, Terms

GATE = "SELECT * FROM core.gate(%s, %s, %s, %s, %s)"
CLAIM = "SELECT * FROM core.claim(%s, %s, %s, %s, %s, %s, %s)"
FREEZE = "SELECT core.freeze(%s, %s, %s, %s)"
SETTLE = "SELECT core.settle(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
RENEW = "SELECT job_id, queue, generation FROM core.renew(%s, %s, %s, %s, %s)"
BURY = "SELECT core.bury_poison(%s, %s, %s, %s, %s, %s, %s)"
ENVELOPE = ("job_id", "tenant_id", "correlation_id", "kind", "data")
"""As the gate returns it."""

COMMITTED = ("delivered", "suppressed")
"""Settlements that keep a handler's work."""


class PostgresLedger:
    """Calls the versioned functions of `notif/migrations/sql`; holds no rule of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def gate(self, ref: Reference, terms: Terms) -> Gated | PoisonedRow | Stop:
        rows = self._database.call(GATE, (ref.job_id, ref.queue, ref.generation, terms.provider, terms.key_lifetime))
        if not rows:
            return GONE
        verdict, seconds, reason, *of_envelope, schema_hash, domain, request, attempts, unknown_seconds = rows[0]
        if verdict is not None:
            return Stop(verdict, seconds, reason)
        fields = dict(zip(ENVELOPE, of_envelope, strict=True))
        try:
            envelope = Envelope.parse(fields)
        except InvalidEnvelope as error:
            return PoisonedRow(str(error), json.dumps(fields, default=str, sort_keys=True).encode())
        return Gated(envelope, schema_hash, domain, request, attempts, unknown_seconds or 0.0)

    def claim(self, ref: Reference, terms: Terms, request: bytes | None) -> Claimed | Stop:
        key = (ref.job_id, ref.queue, ref.generation)
        rows = self._database.call(CLAIM, (*key, terms.provider, terms.key_lifetime, terms.lease, request))
        if not rows:
            return GONE
        verdict, seconds, reason, generation, attempts, frozen, key_number, probe = rows[0]
        if verdict is not None:
            return Stop(verdict, seconds, reason)
        return Claimed(generation, attempts, frozen, provider_key(ref.job_id, terms.consumer, key_number), bool(probe))

    def freeze(self, ref: Reference, generation: int, request: bytes) -> bool:
        return bool(self._database.call(FREEZE, (ref.job_id, ref.queue, generation, request))[0][0])

    def settle(self, ref: Reference, generation: int, terms: Terms, settlement: Settlement) -> str:
        return str(self._database.call(SETTLE, _settle_arguments(ref, generation, terms, settlement))[0][0])

    def renew(self, claims: Sequence[Held], lease: timedelta) -> set[tuple[UUID, str, int]]:
        columns = (
            [held.ref.job_id for held in claims],
            [held.ref.queue for held in claims],
            [held.generation for held in claims],
            [held.max_runtime for held in claims],
        )
        rows = self._database.call(RENEW, (*columns, lease))
        return {(row[0], row[1], row[2]) for row in rows}

    def work(self, ref: Reference, generation: int, terms: Terms, work: Callable[[Session], Settlement]) -> str:
        with self._database.session() as session:
            connection = session.connection()
            begin = (ref.job_id, ref.queue, generation)
            if not connection.exec_driver_sql("SELECT core.begin_work(%s, %s, %s)", begin).scalar():
                return "gone"
            with session.begin_nested() as savepoint:
                settlement = work(session)
                if settlement.verdict not in COMMITTED:
                    savepoint.rollback()
            if connection.invalidated:  # the handler took it for its own failure: nothing is left to settle in
                raise Unavailable("Postgres does not answer: the connection was lost in the handler")
            settle = _settle_arguments(ref, generation, terms, settlement)
            return str(connection.exec_driver_sql(SETTLE, settle).scalar())


class PostgresPoison:
    """PoisonPort on `core.bury_poison`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def bury(self, queue: str, consumer: str, message_id: str, ref: Reference | None, raw: bytes, error: str) -> bool:
        job, generation = (ref.job_id, ref.generation) if ref else (None, None)
        return bool(self._database.call(BURY, (queue, consumer, message_id, job, generation, raw, error))[0][0])


def provider_key(job_id: UUID, consumer: str, number: int) -> str:
    """The idempotency key at the provider: `job_id:consumer`, after the n-th thaw with `:n`."""
    return f"{job_id}:{consumer}" + (f":{number}" if number else "")


def _settle_arguments(ref: Reference, generation: int, terms: Terms, s: Settlement) -> tuple[Any, ...]:
    return (
        ref.job_id,
        ref.queue,
        generation,
        terms.key_lifetime,
        terms.attempts,
        s.verdict,
        s.wait,
        s.state,
        storable(s.cause),
        storable(s.error),
        storable(s.provider_id),
        s.refund,
        s.ambiguous_since,
    )
