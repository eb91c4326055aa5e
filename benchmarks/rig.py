"""One installation for all benchmarks: every server and role a process of its own, as in production; thrown away at the end."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import redis

from notif.bootstrap import App
from notif.bootstrap.machine import Machine
from notif.envelope import Envelope
from notif.errors import Unavailable
from notif.ports import Publication, Tenant
from notif.sandbox import SandboxClient
from notif.settings import SINGLE_CELL

ROOT = Path(__file__).parent.parent
CONFIG = Path(__file__).parent / "config.yaml"
QUEUE = "notif.email.transactional"
WORKER, MARKETING = f"worker:{QUEUE}", "worker:notif.email.marketing"
MESSAGE = {
    "from": "Acme <hello@mail.acme.test>",
    "to": ["ann@example.test"],
    "subject": "Your parcel has left",
    "text": "Hello Ann, order A-1 is on its way.",
}
ORDER = {"email": "ann@example.test", "name": "Ann", "order_number": "A-1", "carrier": "DHL"}
DATA: dict[str, dict[str, Any]] = {"email.message": MESSAGE, "order.shipped": ORDER, "parcel.offer": ORDER}
PATIENCE = 120.0
"""Seconds anything may take before the benchmark is given up."""


class Rig:
    """Servers with a kept data folder, so that Postgres syncs to disk as in production; no role runs until `start`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="notif-bench-"))
        given = {name: os.environ[name] for name in ("NOTIF_PG_BIN", "NOTIF_VALKEY_BIN") if name in os.environ}
        self.machine = Machine(self._folder / "data", {"NOTIF_CONFIG": str(CONFIG), **given}, roles=[], workers=2)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            stack.enter_context(self.machine)
            self.sandbox = SandboxClient(self.machine.sandbox_url)
            self.app = App.from_settings(self.machine.operator_env)
            stack.callback(self.app.close)
            self._sessions: dict[str, psycopg.Connection[Any]] = {}
            stack.callback(self.reconnect)
            self.redis: redis.Redis = stack.enter_context(redis.Redis.from_url(self.redis_url))
            self.tenants = [uuid4() for _ in range(100)]
            for number, tenant in enumerate(self.tenants):
                self.app.tenants.add(Tenant(tenant, f"Tenant {number}", "UTC", "standard", SINGLE_CELL, True))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # ---- where things are
    def admin_url(self, database: str) -> str:
        assert self.machine.servers.postgres
        return self.machine.servers.postgres.url_for("postgres", self.machine.servers.postgres.password, database)

    @property
    def redis_url(self) -> str:
        assert self.machine.servers.valkey
        return self.machine.servers.valkey.url

    @property
    def postgres_log(self) -> Path:
        assert self.machine.servers.postgres
        return self.machine.servers.postgres.directory / "log"

    @property
    def pids(self) -> dict[str, int]:
        """Roles, sandbox and servers."""
        assert self.machine.servers.postgres
        assert self.machine.servers.valkey
        servers = {"postgres": self.machine.servers.postgres.pid, "valkey": self.machine.servers.valkey.pid}
        return {**self.machine.pids, **servers}

    def process_env(self, **more: str) -> dict[str, str]:
        """For a process that is none of notif's roles."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**kept, "PYTHONPATH": str(ROOT), **more}

    def redis_parts(self) -> tuple[str, int, str]:
        parts = urlsplit(self.redis_url)
        assert parts.hostname
        assert parts.port
        assert parts.password
        return parts.hostname, parts.port, parts.password

    # ---- run
    def start(self, *roles: str) -> None:
        self.machine.start_roles(roles)

    def stop(self, *roles: str) -> None:
        self.machine.stop_roles(roles)

    # ---- publish
    def jobs(self, count: int, kind: str) -> list[Publication]:
        """In turn for ten tenants, or more if `count` is large."""
        queues = self.app.kinds.get(kind).all_queues
        tenants = self.tenants[: max(10, min(100, count // 100))]
        return [
            Publication(queues, Envelope.new(tenants[n % len(tenants)], kind, DATA[kind])) for n in range(count)
        ]  # fmt: skip

    # ---- look
    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """As the administrator, in notif's database."""
        return self._rows("notif", query, parameters)

    def watch(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """As the administrator, from another database, so that looking is not counted."""
        return self._rows("postgres", query, parameters)

    def reconnect(self) -> None:
        """After an outage, which may have ended our sessions unnoticed."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def waiting(self) -> int:
        return int(self.rows("SELECT count(*) FROM core.outbox")[0][0])

    def empty(self) -> None:
        """Nothing is waiting, and nothing arrived."""
        self.rows("TRUNCATE core.outbox")
        self.sandbox.reset()

    def facts(self) -> dict[str, object]:
        """The servers, and what durability costs here."""
        settings = ("fsync", "synchronous_commit", "full_page_writes", "server_version")
        shown = {name: self.rows(f"SHOW {name}")[0][0] for name in settings}
        append = self.redis.config_get("append*")
        return {
            "postgres": f"{shown.pop('server_version').split()[0]} ({', '.join(f'{k} {v}' for k, v in shown.items())})",
            "valkey": f"appendonly {append['appendonly']}, appendfsync {append['appendfsync']}",
            "one commit ms": round(self._commit_cost() * 1000, 2),
        }

    def _rows(self, database: str, query: str, parameters: Sequence[Any]) -> list[Any]:
        session = self._sessions.get(database)
        if session is None or session.closed:
            session = self._sessions[database] = psycopg.connect(self.admin_url(database), autocommit=True)
        try:
            cursor = session.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError as error:
            raise Unavailable(str(error)) from error

    def _commit_cost(self, count: int = 50) -> float:
        self.rows("CREATE SCHEMA IF NOT EXISTS bench")
        self.rows("CREATE TABLE IF NOT EXISTS bench.row (n integer)")
        started = time.perf_counter()
        for n in range(count):
            self.rows("INSERT INTO bench.row VALUES (%s)", (n,))
        return (time.perf_counter() - started) / count


def until(look: Callable[[], bool], what: str, every: float = 0.02, patience: float = PATIENCE) -> None:
    """Raises Unavailable after `patience` seconds."""
    end = time.monotonic() + patience
    while not look():
        if time.monotonic() > end:
            raise Unavailable(f"not within {patience:.0f} s: {what}")
        time.sleep(every)
