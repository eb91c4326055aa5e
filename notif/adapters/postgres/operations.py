"""What operators and the maintenance role read and write: tenants, dead letters, processes, closings."""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from notif.adapters.postgres.database import Database
from notif.errors import NotFound, Refused
from notif.ports import Letter, Process, Tenant

LETTER = """
SELECT id, job_id, queue, consumer, tenant_id, correlation_id, cause, outcome, attempts::integer, last_error, status, created_at,
       decided_at, decided_by, reason, {payload}, {raw}, coalesce(snapshot -> 'history', '[]')
FROM core.dead_letters
"""


class PostgresTenants:
    """TenantsPort under the maintenance role."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, tenant: Tenant) -> None:
        t = tenant
        added = self._database.call(
            "INSERT INTO core.tenant (id, name, timezone, tier, cell_id, active) VALUES (%s, %s, %s, %s, %s, %s) "
            "ON CONFLICT DO NOTHING RETURNING id",
            (t.id, t.name, t.timezone, t.tier, t.cell_id, t.active),
        )
        if not added:
            raise Refused(f"tenant {t.id} is there already; change it by `notif tenants set`")

    def list(self) -> list[Tenant]:
        rows = self._database.call(
            "SELECT id, name, timezone, tier, cell_id, active FROM core.tenant ORDER BY name, id"
        )
        return [Tenant(*row) for row in rows]

    def get(self, tenant_id: UUID) -> Tenant:
        rows = self._database.call(
            "SELECT id, name, timezone, tier, cell_id, active FROM core.tenant WHERE id = %s", (tenant_id,)
        )
        if not rows:
            raise NotFound(f"no tenant {tenant_id}; see `notif tenants list`")
        return Tenant(*rows[0])

    def update(self, tenant: Tenant) -> None:
        t = tenant
        found = self._database.call(
            "UPDATE core.tenant SET name = %s, timezone = %s, tier = %s, cell_id = %s, active = %s WHERE id = %s RETURNING id",
            (t.name, t.timezone, t.tier, t.cell_id, t.active, t.id),
        )
        if not found:
            raise NotFound(f"no tenant {t.id}; see `notif tenants list`")


class PostgresLetters:
    """LettersPort: the rules are in `core.replay` and `core.discard`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, *, status: str = "pending_review", most: int = 100) -> list[Letter]:
        query = LETTER.format(payload="NULL", raw="NULL") + "WHERE status = %s ORDER BY id LIMIT %s"
        return [_letter(row) for row in self._database.call(query, (status, most))]

    def get(self, letter_id: int) -> Letter:
        rows = self._database.call(LETTER.format(payload="payload", raw="raw") + "WHERE id = %s", (letter_id,))
        if not rows:
            raise NotFound(f"no dead letter {letter_id}; see `notif dead-letters list`")
        return _letter(rows[0])

    def replay(self, letter_id: int, key_lifetime: timedelta | None, *, accept: bool, who: str) -> UUID:
        job: UUID = self._database.call("SELECT core.replay(%s, %s, %s, %s)", (letter_id, key_lifetime, accept, who))[
            0
        ][0]
        return job

    def discard(self, letter_id: int, *, reason: str, who: str) -> None:
        self._database.call("SELECT core.discard(%s, %s, %s)", (letter_id, reason, who))


class PostgresProcesses:
    """ProcessesPort; `since` is this object's making."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._since: Any = None

    def beat(self, role: str, lane: str, trouble: str = "") -> None:
        self._since = self._since or self._database.call("SELECT now()")[0][0]
        me = (socket.gethostname(), os.getpid(), role, lane, self._since, trouble)
        self._database.call("SELECT core.beat(%s, %s, %s, %s, %s, %s)", me)

    def list(self) -> list[Process]:
        rows = self._database.call(
            "SELECT role, lane, pid, host, since FROM core.process "
            "WHERE seen_at > core.clock() - interval '15 seconds' ORDER BY role, lane, host, pid"
        )
        return [Process(*row) for row in rows]


class PostgresUpkeep:
    """UpkeepPort on the functions of `80_upkeep.sql`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def clean_fences(self, most: int) -> int:
        return self._count("SELECT core.clean_fences(%s)", (most,))

    def clean_deliveries(self, most: int) -> int:
        return self._count("SELECT core.clean_deliveries(%s)", (most,))

    def clean_letters(self, retention: timedelta, most: int) -> int:
        return self._count("SELECT core.clean_letters(%s, %s)", (retention, most))

    def clean_processes(self) -> None:
        self._database.call("SELECT core.clean_processes()")

    def wake_halted(self, provider: str, queues: Sequence[str]) -> int:
        return self._count("SELECT core.wake_halted(%s, %s)", (provider, list(queues)))

    def resume(self, provider: str, domain: str, queues: Sequence[str], who: str) -> bool:
        """A person ends a closing or a halt; what waited for it is due at once. False: nothing was closed."""
        return bool(self._count("SELECT core.resume(%s, %s, %s, %s)", (provider, domain, list(queues), who)))

    def _count(self, statement: str, parameters: tuple[Any, ...]) -> int:
        return int(self._database.call(statement, parameters)[0][0])


def _letter(row: Any) -> Letter:
    raw = bytes(row[16]) if row[16] is not None else None
    return Letter(*(*row[:16], raw, tuple(row[17])))
