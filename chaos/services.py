"""The two servers, and every way to harm them: ended, stalled, full, emptied, on a clock that jumps, held by an outsider."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import redis

from chaos.clocks import Clock
from chaos.disks import Disk
from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.bootstrap.servers import DATABASE, Addresses, Servers
from notif.settings import Settings

T = TypeVar("T")
BACK_WITHIN = 20.0
"""Seconds a server, or the sandbox, takes to come back by itself."""
LITTLE_WAL = {"min_wal_size": "32MB", "max_wal_size": "128MB"}
"""What lies ready on a full disk is used up soon; and the disk is memory."""
SEGMENTS = 12
"""More segments of write-ahead log than lie ready on a disk."""


class Postgres(EmbeddedPostgres):
    """By a clock of its own."""

    def __init__(self, directory: Path, *, binaries: Path | None, clock: Sequence[str]) -> None:
        super().__init__(directory, binaries=binaries, options=LITTLE_WAL)
        self._clock = list(clock)

    def _spawn(
        self, argv: Sequence[str | Path], *, cwd: Path, identity: tuple[int, int] | None = None, stdin: bytes = b""
    ) -> None:
        super()._spawn([*self._clock, *argv], cwd=cwd, identity=identity, stdin=stdin)


class Valkey(EmbeddedValkey):
    """By a clock of its own."""

    def __init__(self, directory: Path, *, binary: Path | None, clock: Sequence[str]) -> None:
        super().__init__(directory, binary=binary)
        self._clock = list(clock)

    def _spawn(
        self, argv: Sequence[str | Path], *, cwd: Path, identity: tuple[int, int] | None = None, stdin: bytes = b""
    ) -> None:
        super()._spawn([*self._clock, *argv], cwd=cwd, identity=identity, stdin=stdin)


class Services:
    """Below `folder`, their logs in `logs`. `disks`: each on a disk of its own that can be full. Ends with `close`."""

    def __init__(self, settings: Settings, folder: Path, logs: Path, *, disks: bool) -> None:
        self._open, self._snapshot = ExitStack(), ExitStack()
        self._disks: dict[str, Disk] = {}
        self._clocks: dict[str, Clock] = {}
        self.pids: set[int] = set()
        """Of all servers that were ever started."""
        for name, product, seen_as in (("postgres", "postgres", "../clock"), ("redis", "valkey", "clock")):
            home = folder / product
            home.mkdir(parents=True)
            if disks:
                self._disks[name] = Disk(home)
                self._open.callback(self._disks[name].close)
            (home / "log").symlink_to(logs / f"{name}.log")  # a full disk takes no log
            self._clocks[name] = Clock(home / "clock", seen_as)
        clocks = {name: clock.command() for name, clock in self._clocks.items()}
        self.postgres = Postgres(folder / "postgres", binaries=settings.pg_bin, clock=clocks["postgres"])
        self.redis = Valkey(folder / "valkey", binary=settings.valkey_bin, clock=clocks["redis"])
        self._servers = Servers(settings, folder)
        self._servers.postgres, self._servers.valkey = self.postgres, self.redis
        self._open.callback(self._servers.stop)

    def start(self) -> Addresses:
        addresses = self._servers.start()
        self.pids |= {self.postgres.pid, self.redis.pid}
        return addresses

    def close(self) -> None:
        self._snapshot.close()
        self._open.close()

    @property
    def admin_url(self) -> str:
        """The administrator's, at notif's database, past the network."""
        return self.postgres.url_for("postgres", self.postgres.password, DATABASE)

    @property
    def redis_url(self) -> str:
        """Past the network."""
        return self.redis.url

    # ---- look, past the network
    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """As the administrator; waits for a server that is coming back."""
        return patiently(lambda: self._rows(query, parameters))

    def delivered(self) -> Mapping[str, int]:
        """How many jobs, by queue; none while Postgres is away."""
        with contextlib.suppress(psycopg.OperationalError):
            return dict(
                self._rows("SELECT queue, count(*) FROM core.delivery WHERE verdict = 'delivered' GROUP BY queue", ())
            )
        return {}

    def _rows(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        with psycopg.connect(self.admin_url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    # ---- what can be done to them
    def wipe_redis(self) -> None:
        with self._client() as client:
            client.flushall()

    def stop_redis(self) -> None:
        self.redis.stop()

    def start_redis(self, *, empty: bool = False) -> None:
        if empty:
            shutil.rmtree(self.redis.directory / "appendonlydir", ignore_errors=True)
        self.redis.start()
        self.pids.add(self.redis.pid)

    def limit_redis(self, size: int) -> None:
        """Bytes of `maxmemory`; 0: no limit. Nothing is ever evicted, so whatever would need more is refused."""
        with self._client() as client:
            client.config_set("maxmemory", size)

    def stop_postgres(self) -> None:
        self.postgres.stop()

    def start_postgres(self) -> None:
        self.postgres.start()
        self.pids.add(self.postgres.pid)

    def crash_postgres(self) -> None:
        """One backend is killed: the server ends all sessions and recovers."""
        found = self.rows("SELECT pid FROM pg_stat_activity WHERE usename LIKE 'notif%' LIMIT 1")
        for (pid,) in found:
            send(pid, signal.SIGKILL)

    def end_sessions(self) -> None:
        """As a failover does."""
        self.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'notif%'")

    def hold_snapshot(self) -> None:
        """An outsider's transaction that reads, and doesn't end: nothing that dies meanwhile is cleaned away.

        None of a server that is away, its disk being full, or stalled: to wait here would put off the end of that.
        """
        with contextlib.suppress(psycopg.OperationalError):
            connection = psycopg.connect(self.admin_url, connect_timeout=2, application_name="outsider")
            self._snapshot.callback(connection.close)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM core.outbox")

    def end_snapshot(self) -> None:
        """It may have ended with its server."""
        self._snapshot.close()

    def fill_disk(self, service: str, *, log_too: bool = False) -> None:
        """`log_too`: what lies ready of Postgres' write-ahead log is used up as well, and it can do nothing but panic."""
        self._disks[service].fill()
        with contextlib.suppress(psycopg.Error):
            for _ in range(SEGMENTS if log_too else 0):
                self._rows("SELECT pg_logical_emit_message(false, 'chaos', repeat('x', 1000)), pg_switch_wal()", ())

    def free_disk(self, service: str) -> None:
        """A Postgres that has given up meanwhile is started by its operator."""
        self._disks[service].free()
        if service == "postgres":
            patiently(self._look_after_postgres)

    def _look_after_postgres(self) -> None:
        if not self.postgres.running:
            self.start_postgres()
        self._rows("SELECT 1", ())

    def set_clock(self, service: str, off_by: float) -> None:
        self._clocks[service].off_by(off_by)

    def stall(self, service: str) -> None:
        for pid in self._processes_of(service):
            send(pid, signal.SIGSTOP)

    def go_on(self, service: str) -> None:
        for pid in self._processes_of(service):
            send(pid, signal.SIGCONT)

    def thaw(self) -> None:
        """Nothing is stopped, and no disk is full: so a server can be ended in good order."""
        for disk in self._disks.values():
            disk.free()
        for service in ("postgres", "redis"):
            self.go_on(service)

    def heal(self) -> None:
        """Both run, unharmed."""
        self.thaw()
        self.end_snapshot()
        for clock in self._clocks.values():
            clock.off_by(0.0)
        self.start_redis()
        self.limit_redis(0)
        self.start_postgres()

    # ---- inside
    def _client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.redis_url, socket_timeout=10)

    def _processes_of(self, service: str) -> list[int]:
        """The server and all its children, the server first."""
        server = self.postgres if service == "postgres" else self.redis
        return [server.pid, *_children(server.pid)] if server.running else []


def patiently(act: Callable[[], T]) -> T:
    """Tries again for as long as a server, or the sandbox, may take to come back."""
    end = time.monotonic() + BACK_WITHIN
    while True:
        try:
            return act()
        except (OSError, psycopg.OperationalError):
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(entry.parent.name)
