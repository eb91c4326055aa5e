"""Real servers for the tests: embedded ones, or those that NOTIF_TEST_* names, and then on loopback only."""

import os
import secrets
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import redis
from psycopg import sql

from notif.adapters import alembic
from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.adapters.postgres import roles

PASSWORD = "test-" + secrets.token_hex(8)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
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
def running(environ: Mapping[str, str] = os.environ) -> Iterator[Servers]:
    """A variable that is set but empty counts as not set. Raises ValueError: a server that is not this machine's."""
    postgres = _on_loopback("NOTIF_TEST_DATABASE_URL", environ)
    valkey = _on_loopback("NOTIF_TEST_REDIS_URL", environ)
    pg = vk = None
    try:
        if not postgres:
            pg = EmbeddedPostgres(binaries=_path("NOTIF_PG_BIN", environ), options={"max_connections": "300"}).start()
        if not valkey:
            vk = EmbeddedValkey(binary=_path("NOTIF_VALKEY_BIN", environ)).start()
        yield Servers(postgres or (pg and pg.admin_url) or "", valkey or (vk and vk.url) or "", vk)
    finally:
        if vk:
            vk.stop()
        if pg:
            pg.stop()


def _on_loopback(name: str, environ: Mapping[str, str]) -> str:
    """Tests empty what they use: a host elsewhere, named in whichever part of the URL, is refused without showing the URL."""
    url = environ.get(name, "").strip()
    parts = urlsplit(url)
    elsewhere = {"host", "hostaddr", "service"} & parse_qs(parts.query, keep_blank_values=True).keys()
    if url and (parts.hostname not in LOOPBACK or elsewhere):
        raise ValueError(
            f"{name}: tests empty what they use, so its host must be {', '.join(LOOPBACK)}, and be named once"
        )
    return url


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    value = environ.get(name, "").strip()
    return Path(value) if value else None


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
