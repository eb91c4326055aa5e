"""The whole system as real processes, two of most, each on its own way to its services; thrown away at the end."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import redis

from chaos.network import Network
from chaos.product import TABLE
from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.embedded_process import free_port
from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.bootstrap import App
from notif.bootstrap.crew import Crew
from notif.bootstrap.environments import Environments
from notif.bootstrap.servers import DATABASE, Servers
from notif.errors import NotFound, Unavailable
from notif.ports import Tenant
from notif.sandbox import SandboxClient
from notif.settings import SINGLE_CELL, Settings
from notif.supervisor import Role

T = TypeVar("T")
CONFIG = Path(__file__).parent / "config.yaml"
QUEUES = ("notif.email.transactional", "notif.email.marketing", "loyalty")
SANDBOX = "sandbox"
WORKERS = {f"worker:{queue}#{n}": queue for queue in QUEUES for n in (1, 2)}
ROLES = {**WORKERS, "relay#1": "relay", "relay#2": "relay", "maintenance": "maintenance", SANDBOX: SANDBOX}
"""Every process of the system, by name, and what it runs."""
PUBLISHER, OPERATOR = "publisher", "operator"
TENANTS = 5
PATIENCE = 120.0
"""Seconds for all processes to be there."""
BACK_WITHIN = 20.0
"""Seconds a server, or the sandbox, takes to come back by itself."""
GRACE = 2.0
"""Seconds a stopping process gets; then it is killed: by then all is judged, or given up."""


class Plant:
    """A context manager: servers, processes, the ways between them, and every way to harm them.

    Start it on the main thread: the servers end with the thread that starts them.
    """

    def __init__(self, on_event: Callable[[str, str], None]) -> None:
        self._on_event = on_event
        self._open = ExitStack()
        self.tenants: list[UUID] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="notif-chaos-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            given = {name: os.environ[name] for name in ("NOTIF_PG_BIN", "NOTIF_VALKEY_BIN") if name in os.environ}
            environ = {"NOTIF_CONFIG": str(CONFIG), "NOTIF_APP": "chaos.product:register", **given}
            settings = Settings.from_environment(environ)
            self._settings = settings.model_copy(update={"data_dir": self.folder})
            self.network = stack.enter_context(Network())
            self._servers = Servers(settings, self.folder / "data")
            stack.callback(self._servers.stop)
            self._addresses = self._servers.start()
            self.sandbox_url = f"http://127.0.0.1:{free_port()}"
            self._control = SandboxClient(self.sandbox_url, timeout=5.0)
            self._crew = Crew(self.logs, self._on_event)
            stack.callback(self._crew.close)
            stack.callback(lambda: self._crew.stop(ROLES, GRACE))
            stack.callback(self._thaw)
            self._man()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def app(self, name: str) -> App:
        """An App of ours, on its own way to the services. The caller closes it."""
        return App.from_settings(self._environments(name).operator)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def admin_url(self) -> str:
        """The administrator's, at notif's database, past the network."""
        return self._postgres.url_for("postgres", self._postgres.password, DATABASE)

    @property
    def redis_url(self) -> str:
        """Past the network."""
        return self._valkey.url

    # ---- what can be done to it
    def signal(self, process: str, number: int) -> None:
        """Does nothing if it isn't running at this moment."""
        with contextlib.suppress(NotFound):
            self._crew.kill(process, number)

    def script(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Replace the provider's script of faults; waits for a sandbox that is being restarted."""
        self._patiently(lambda: self._control.faults([dict(fault) for fault in faults]))

    def wipe_redis(self) -> None:
        with redis.Redis.from_url(self.redis_url, socket_timeout=10) as client:
            client.flushall()

    def stop_redis(self) -> None:
        self._valkey.stop()

    def start_redis(self, *, empty: bool = False) -> None:
        if empty:
            shutil.rmtree(self._valkey.directory / "appendonlydir", ignore_errors=True)
        self._valkey.start()

    def stop_postgres(self) -> None:
        self._postgres.stop()

    def start_postgres(self) -> None:
        self._postgres.start()

    def crash_postgres(self) -> None:
        """One backend is killed: the server ends all sessions and recovers."""
        found = self.rows("SELECT pid FROM pg_stat_activity WHERE usename LIKE 'notif%' LIMIT 1")
        for (pid,) in found:
            os.kill(pid, signal.SIGKILL)

    def end_sessions(self) -> None:
        """As a failover does."""
        self.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'notif%'")

    def stall(self, service: str) -> None:
        for pid in self._processes_of(service):
            _signal(pid, signal.SIGSTOP)

    def go_on(self, service: str) -> None:
        for pid in self._processes_of(service):
            _signal(pid, signal.SIGCONT)

    def heal(self) -> None:
        """Whatever was done to it, everything runs, reachable and unharmed. Raises Unavailable."""
        self._thaw()
        self.network.clear()
        self._valkey.start()
        self._postgres.start()
        self._until_up()
        self.script([])

    def heal_at_once(self) -> None:
        """Nothing is held up any more; what was ended is left as it is."""
        self._thaw()
        self.network.clear()

    # ---- look, past the network
    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """As the administrator; waits for a server that is coming back."""
        return self._patiently(lambda: self._rows(query, parameters))

    def _rows(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        with psycopg.connect(self.admin_url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def waiting(self) -> int:
        """Rows in the outbox."""
        return int(self.rows("SELECT count(*) FROM core.outbox")[0][0])

    # ---- inside
    def _man(self) -> None:
        self.rows(TABLE)
        for name, role in ROLES.items():
            made = self._environments(name)
            if name in WORKERS:
                env, arguments = made.worker, ["worker", role]
            elif name == SANDBOX:
                port, journal = urlsplit(self.sandbox_url).port, self.folder / "sandbox.jsonl"
                env, arguments = made.sandbox, [SANDBOX, "--port", str(port), "--journal", str(journal)]
            else:
                env, arguments = made.relay, [role]
            self._crew.add(Role(name, (sys.executable, "-m", "notif", *arguments)), env)
        with contextlib.closing(self.app(OPERATOR)) as app:
            for number in range(TENANTS):
                self.tenants.append(uuid4())
                app.tenants.add(
                    Tenant(self.tenants[-1], f"Tenant {number}", "UTC", "standard", SINGLE_CELL, True)
                )  # fmt: skip
        self._crew.start(ROLES)
        self._until_up()

    def _environments(self, process: str) -> Environments:
        """What a process may know: the URLs of its own way."""
        a = self._addresses
        ports: dict[str, int] = {}

        def by_network(url: str, service: str) -> str:
            parts = urlsplit(url)
            assert parts.port
            if service not in ports:
                ports[service] = self.network.link(process, service, ("127.0.0.1", parts.port))
            return parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{ports[service]}").geturl()

        assert a.owner
        assert a.publisher
        moved = replace(
            a,
            worker=by_network(a.worker, "postgres"),
            maintenance=by_network(a.maintenance, "postgres"),
            publisher=by_network(a.publisher, "postgres"),
            redis=by_network(a.redis, "redis"),
        )
        return Environments(self._settings, moved, self.sandbox_url, {})

    def _until_up(self) -> None:
        """Every process has said that it is there; those that were killed, the new ones."""
        end = time.monotonic() + PATIENCE
        while missing := self._missing():
            if time.monotonic() > end:
                raise Unavailable(f"not there after {PATIENCE:g} s: {', '.join(missing)}")
            time.sleep(0.1)

    def _missing(self) -> list[str]:
        pids = self._crew.pids()
        known = {pid for (pid,) in self.rows("SELECT pid FROM core.process")}
        missing = [name for name in ROLES if name != SANDBOX and pids.get(name) not in known]
        try:
            self._control.counts()
        except OSError:
            missing.append(SANDBOX)
        return missing

    def _thaw(self) -> None:
        """Nothing is stopped: a stopped process can't even be ended in good order."""
        for name in self._crew.pids():
            self.signal(name, signal.SIGCONT)
        for service in ("postgres", "redis"):
            self.go_on(service)

    def _processes_of(self, service: str) -> list[int]:
        """The server and all its children, the server first."""
        server = self._postgres if service == "postgres" else self._valkey
        return [server.pid, *_children(server.pid)] if server.running else []

    @staticmethod
    def _patiently(act: Callable[[], T]) -> T:
        end = time.monotonic() + BACK_WITHIN
        while True:
            try:
                return act()
            except (OSError, psycopg.OperationalError):
                if time.monotonic() > end:
                    raise
            time.sleep(0.1)

    @property
    def _postgres(self) -> EmbeddedPostgres:
        assert self._servers.postgres
        return self._servers.postgres

    @property
    def _valkey(self) -> EmbeddedValkey:
        assert self._servers.valkey
        return self._servers.valkey


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(entry.parent.name)
