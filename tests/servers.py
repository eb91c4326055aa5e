"""Real servers for the tests: embedded ones, or those that NOTIF_TEST_* names, and then on loopback only."""

import os
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import redis
from psycopg import sql

from notif.adapters import alembic
from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.adapters.postgres import roles

PASSWORD = "test-" + secrets.token_hex(8)
TABLES = (
    "outbox",
    "processed_job",
    "delivery",
    "dead_letters",
    "provider_state",
    "incident",
    "audit",
    "process",
    "tenant",
)


@dataclass(frozen=True)
class Servers:
    """Where they are: an administrator's PostgreSQL URL, and a Redis of our own."""

    admin_url: str
    redis_url: str
    valkey: EmbeddedValkey | None

    def url(self, role: str, database: str) -> str:
        where = urlsplit(self.admin_url)
        return f"postgresql://{role}:{quote(PASSWORD)}@{where.hostname}:{where.port}/{database}"

    def admin(self, database: str) -> str:
        return urlsplit(self.admin_url)._replace(path=f"/{database}").geturl()


@contextmanager
def running() -> Iterator[Servers]:
    postgres, valkey = os.environ.get("NOTIF_TEST_DATABASE_URL"), os.environ.get("NOTIF_TEST_REDIS_URL")
    for url in (postgres, valkey):
        if url and urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError("NOTIF_TEST_*: tests empty what they use, so they only touch servers on loopback")
    binaries = Path(os.environ["NOTIF_PG_BIN"]) if "NOTIF_PG_BIN" in os.environ else None
    pg = None if postgres else EmbeddedPostgres(binaries=binaries, options={"max_connections": "300"}).start()
    vk = None if valkey else EmbeddedValkey().start()
    try:
        yield Servers(postgres or (pg and pg.admin_url) or "", valkey or (vk and vk.url) or "", vk)
    finally:
        if vk:
            vk.stop()
        if pg:
            pg.stop()


def new_database(servers: Servers) -> str:
    """A database with roles and the newest schema; its name."""
    name = f"notif_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(servers.admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    roles.create(servers.admin(name), dict.fromkeys(roles.ROLES, PASSWORD))
    alembic.upgrade(servers.url("notif_owner", name))
    return name


def emptied(servers: Servers, database: str) -> None:
    """Everything out of Postgres and Redis."""
    with psycopg.connect(servers.url("notif_owner", database), autocommit=True) as connection:
        connection.execute(";".join(f"DELETE FROM core.{table}" for table in TABLES).encode())
    client = redis.Redis.from_url(servers.redis_url)
    client.flushdb()
    client.close()
