"""Where the schedules are played: a real PostgreSQL under each role, a real Valkey, and one clock that the driver moves."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import redis
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from notif.adapters.alembic import SCRIPTS
from notif.adapters.dramatiq_worker import NotifBroker
from notif.adapters.postgres.database import Database
from notif.adapters.redis_carrier import NAMESPACE, RedisCarrier, encode
from notif.ports import Reference
from tests.protocol.doubles import NoPoison, Quiet
from tests.servers import Servers

SQL = SCRIPTS / "sql" / "0001"
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
"""What the schedules call second 0."""
WORKERS = 3
TENANTS = (UUID(int=0xA), UUID(int=0xB))
MAIL_QUEUES = ("notif.email.transactional", "notif.email.marketing")
LEDGER = "points"
QUEUES = (*MAIL_QUEUES, LEDGER)
CONSUMERS = {**dict(zip(MAIL_QUEUES, MAIL_QUEUES, strict=True)), LEDGER: "points-book"}
Address = tuple[str, str]
"""A job's id and its queue."""

# Rows, fences, pending letters, new deliveries, closings, and what handlers wrote: one statement, one snapshot.
LOOK = """
SELECT json_build_array(
  (SELECT json_agg(json_build_array(job_id, queue, state, generation, attempts, ambiguous, key_number,
     extract(epoch FROM key_since), convert_from(request, 'UTF8'), extract(epoch FROM due_at), extract(epoch FROM expires_at),
     sender_domain, resend_unknown)) FROM core.outbox),
  (SELECT json_agg(json_build_array(job_id, consumer)) FROM core.processed_job),
  (SELECT json_agg(json_build_array(id, job_id, queue, cause, outcome, attempts,
     extract(epoch FROM (snapshot ->> 'key_since')::timestamptz), snapshot ->> 'resend_unknown') ORDER BY id)
   FROM core.dead_letters WHERE status = 'pending_review'),
  (SELECT json_agg(json_build_array(id, job_id, queue, verdict)) FROM core.delivery WHERE id > %s),
  (SELECT json_agg(json_build_array(domain, state, extract(epoch FROM until), extract(epoch FROM transactional_until),
     extract(epoch FROM probe_at), probe))
   FROM core.provider_state),
  (SELECT json_agg(json_build_array(job_id, queue, n))
   FROM (SELECT job_id, queue, count(*) AS n FROM public.booked GROUP BY 1, 2) b))
"""
PREPARE = """
CREATE TABLE public.booked (job_id uuid NOT NULL, queue text NOT NULL);
ALTER TABLE public.booked OWNER TO notif_owner;
GRANT INSERT ON public.booked TO notif_worker;
"""
CLOCK = """
CREATE OR REPLACE FUNCTION core.clock() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT current_setting(''notif.test_clock'')::timestamptz'
"""


class SeenRow(NamedTuple):
    """An outbox row as it stands in the table. Times in seconds since `EPOCH`."""

    state: str
    generation: int
    attempts: int
    ambiguous: bool
    key_number: int
    key_since: float | None
    request: str | None
    due_at: float
    expires_at: float
    domain: str
    resend: bool


class SeenLetter(NamedTuple):
    """A pending dead letter."""

    address: Address
    cause: str
    outcome: str
    attempts: int
    key_since: float | None
    resend: bool


class SeenClosing(NamedTuple):
    """A row of `core.provider_state`."""

    domain: str
    state: str
    until: float
    transactional_until: float
    probe_at: float | None
    probe: int | None

    def stands_against(self, queue: str, domain: str, generation: int, now: float) -> bool:
        """Whether a call at this generation is forbidden: not to the probe, nor to anybody when a probe is due."""
        if queue not in MAIL_QUEUES or self.domain not in {"", domain} or self.probe == generation:
            return False
        until = self.transactional_until if queue == MAIL_QUEUES[0] else self.until
        return now < until and (self.probe_at is None or now < self.probe_at)


class Seen(NamedTuple):
    """The tables at one moment."""

    rows: dict[Address, SeenRow]
    fences: set[Address]
    letters: dict[int, SeenLetter]
    ended: list[tuple[int, Address, str]]
    closings: list["SeenClosing"]
    booked: dict[Address, int]


class Clock:
    """Seconds since `EPOCH`: what `core.clock()` answers on every connection."""

    def __init__(self) -> None:
        self.now = 0.0

    def moment(self) -> datetime:
        return self.moment_in(0)

    def moment_in(self, seconds: float) -> datetime:
        return EPOCH + timedelta(seconds=self.now + seconds)


class ClockedDatabase(Database):
    """One connection under one role. The driver runs one thing at a time, so one is enough."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, pool=1, name="protocol")
        self._clock, self._told = clock, -1.0

    def _tell(self) -> None:
        if self._told != self._clock.now:
            self._told = self._clock.now
            super().call("SELECT set_config('notif.test_clock', %s, false)", (self._clock.moment().isoformat(),))

    def call(self, statement: str, parameters: Any = ()) -> list[Any]:
        self._tell()
        return super().call(statement, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self._tell()
        with super().transaction() as connection:
            yield connection

    @contextmanager
    def session(self) -> Iterator[Session]:
        self._tell()
        with super().session() as session:
            yield session


class NamelessCarrier(RedisCarrier):
    """Broken on purpose: the id on Redis is the job's, without a generation, and an id that is there is refused."""

    def push(self, refs: Sequence[Reference]) -> bool:
        arguments: list[Any] = [0]
        for ref in refs:
            arguments += [ref.queue, "none", str(ref.job_id), encode(ref, 0)]
        return bool(self._push(keys=[f"{NAMESPACE}:epoch"], args=arguments))

    def decode(self, queue: str, body: bytes) -> Reference:
        job, tenant, generation = json.loads(body)["args"]
        return Reference(UUID(job), queue, UUID(tenant), generation)


class Stage:
    """One database and one Redis for a whole run; `reset` empties them between two schedules."""

    def __init__(self, servers: Servers, database: str, redis_database: int = 7) -> None:
        with psycopg.connect(servers.admin(database), autocommit=True) as admin:
            admin.execute(PREPARE)
        self.clock = Clock()
        self.owner = psycopg.connect(servers.url("notif_owner", database), autocommit=True)
        self.owner.execute(CLOCK)
        for number, tenant in enumerate(TENANTS):
            self.owner.execute(
                "INSERT INTO core.tenant (id, name, cell_id) VALUES (%s, %s, %s)", (tenant, f"t{number}", tenant)
            )
        self.publisher, self.worker, self.maintenance = (
            ClockedDatabase(servers.url(role, database), self.clock)
            for role in ("notif_publisher", "notif_worker", "notif_maintenance")
        )
        self.redis_url = urlsplit(servers.redis_url)._replace(path=f"/{redis_database}").geturl()
        self.redis = redis.Redis.from_url(self.redis_url)
        self.carrier, self.nameless = RedisCarrier(self.redis_url), NamelessCarrier(self.redis_url)
        self.brokers = [self._broker() for _ in range(WORKERS)]
        self.reaper = self._broker()

    def _broker(self) -> NotifBroker:
        """A worker process' connection to Redis, with an id of its own."""
        made = NotifBroker(
            self.redis_url, consumers=CONSUMERS, poison=NoPoison(), healthy=lambda: True, log=Quiet(), middleware=[]
        )
        for queue in QUEUES:
            made.declare_queue(queue)
        return made

    def reset(self) -> None:
        """Everything is empty, and generations start where they always do: the same schedule sees the same numbers."""
        tables = (
            "core.outbox",
            "core.processed_job",
            "core.delivery",
            "core.dead_letters",
            "core.provider_state",
            "core.audit",
        )
        # Not DELETE: what falls due at one time is picked in the order in which it lies on disk, and gaps would be filled.
        emptied = ", ".join((*tables, "public.booked"))
        self.owner.execute(f"TRUNCATE {emptied}; ALTER SEQUENCE core.generation RESTART".encode())
        self.redis.flushdb()

    def look(self, last: int) -> Seen:
        """The tables now; of the deliveries those after id `last`."""
        found = self.owner.execute(LOOK.encode(), (last,)).fetchone()
        assert found is not None
        rows, fences, letters, ended, closings, booked = [part or [] for part in found[0]]
        queue_of = {consumer: queue for queue, consumer in CONSUMERS.items()}
        return Seen(
            {(r[0], r[1]): _row(r) for r in rows},
            {(job, queue_of[consumer]) for job, consumer in fences},
            {x[0]: _letter(x) for x in letters},
            [(number, (job, queue), verdict) for number, job, queue, verdict in ended],
            [SeenClosing(c[0], c[1], _time(c[2]), _time(c[3]), _at(c[4]), c[5]) for c in closings],
            {(job, queue): count for job, queue, count in booked},
        )

    def last_delivery(self) -> int:
        found = self.owner.execute("SELECT coalesce(max(id), 0) FROM core.delivery").fetchone()
        return int(found[0]) if found else 0

    def reap(self, broker: NotifBroker) -> None:
        """What this process has fetched goes back, as if it had been silent for too long."""
        self.redis.zadd(f"{NAMESPACE}:__heartbeats__", {f"{broker.broker_id}.{queue}": 1 for queue in QUEUES})
        self.redis.set(f"{NAMESPACE}:reaped", self.redis.time()[0])  # no stall
        self.reaper.reap()

    def copied(self) -> dict[bytes, bytes]:
        """Everything on Redis."""
        keys: list[bytes] = list(self.redis.scan_iter())
        return {key: body for key in keys if (body := self.redis.dump(key)) is not None}

    def restore(self, copy: dict[bytes, bytes]) -> None:
        self.redis.flushdb()
        for key, body in copy.items():
            self.redis.restore(key, 0, body)

    @contextmanager
    def mutated(self, edits: "tuple[tuple[str, str, str], ...]") -> Iterator[None]:
        """Functions of the migration with something in them replaced; as they were, afterwards."""
        sources = {name: function_source(name) for name, _, _ in edits}
        changed = dict(sources)
        for name, find, replacement in edits:
            assert find in changed[name], f"core.{name} has no {find!r} any more: adapt the mutation"
            changed[name] = changed[name].replace(find, replacement)
        try:
            for source in changed.values():
                self.owner.execute(source.encode())
            yield
        finally:
            for source in sources.values():
                self.owner.execute(source.encode())

    def close(self) -> None:
        self.owner.close()
        for database in (self.publisher, self.worker, self.maintenance):
            database.close()
        self.redis.close()
        for carrier in (self.carrier, self.nameless):
            carrier.close()
        for broker in (*self.brokers, self.reaper):
            broker.client.close()


def function_source(name: str) -> str:
    """The statement that makes `core.{name}`, out of the migration, as CREATE OR REPLACE."""
    text = "\n".join(file.read_text("utf-8") for file in sorted(SQL.glob("*.sql")))
    found = re.search(rf"^CREATE FUNCTION core\.{name}\(.*?\$\$;$", text, re.MULTILINE | re.DOTALL)
    assert found, f"the migration has no core.{name}"
    return found[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)


def _row(r: list[Any]) -> SeenRow:
    return SeenRow(r[2], r[3], r[4], r[5], r[6], _at(r[7]), r[8], _time(r[9]), _time(r[10]), r[11], r[12])


def _letter(x: list[Any]) -> SeenLetter:
    return SeenLetter((x[1], x[2]), x[3], x[4], x[5], _at(x[6]), x[7] == "true")


def _time(value: float | str) -> float:
    return float(value) - EPOCH.timestamp()


def _at(value: float | str | None) -> float | None:
    return None if value is None else _time(value)
