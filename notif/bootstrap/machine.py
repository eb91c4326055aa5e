"""Everything on one machine: servers, sandbox and every role. `notif up`, the demo and tests are built on it."""

import http.client
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self
from urllib.parse import urlsplit

from notif.adapters.embedded_process import free_port
from notif.adapters.postgres.database import Database
from notif.adapters.postgres.operations import PostgresProcesses
from notif.bootstrap.app import App
from notif.bootstrap.crew import Crew
from notif.bootstrap.environments import Environments
from notif.bootstrap.running import Claim, Running
from notif.bootstrap.servers import Servers
from notif.errors import ConfigurationError, Unavailable
from notif.settings import Settings
from notif.supervisor import Role

READY = 120.0
"""Seconds until every role must be up."""
LOOK = 1.0
"""Seconds between two looks at the embedded servers."""
GRACE = 35.0
"""Seconds a stopping role gets; more than a worker's drain."""


@dataclass(frozen=True, slots=True)
class Service:
    """An outside service: `kind` is real, embedded, sandbox or log."""

    name: str
    kind: str
    address: str


def _ignore(role: str, text: str) -> None:
    pass


class Machine:
    """A whole installation, as a context manager.

    Without `data_dir` everything is thrown away by `stop`. `environ` says which services are given (as `Settings` reads
    it) and is passed on to the processes otherwise; what it doesn't name is embedded, or the sandbox. Nothing is taken
    from our own environment but PATH and the like. `roles`: those `start` starts, all if None; names as in `roles`.
    `workers`: processes per queue. `on_event(role, text)` hears of every process that starts or ends, on another thread.

    Start it from a thread that lives as long as it should. Raises ConfigurationError at once if anything is set wrong.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        roles: Collection[str] | None = None,
        workers: int = 1,
        on_event: Callable[[str, str], None] = _ignore,
    ) -> None:
        self._environ = dict(environ or {})
        self._given = Settings.from_environment(self._environ)
        if self._given.resend_api_url and not self._given.resend_api_key:
            raise ConfigurationError("RESEND_API_URL: is set without RESEND_API_KEY; set both, or none for the sandbox")
        app = App.from_settings(self._environ)
        self.config = app.config
        self.unread = [
            queue for queue in app.config.queue_names if not (app.config.provider(queue) or queue in app.handlers)
        ]
        """Queues without a consumer: nobody registers one, so no worker is started for them."""
        read = [queue for queue in app.config.queue_names if queue not in self.unread]
        self._queues = {
            f"worker:{queue}{f'#{number}' if number > 1 else ''}": queue
            for queue in read
            for number in range(1, workers + 1)
        }
        self._wanted = None if roles is None else list(roles)
        self._data_dir, self._on_event = data_dir and data_dir.expanduser().absolute(), on_event
        self.servers = Servers(self._given, self._data_dir)
        self.sandboxed = self._given.resend_api_key is None
        self._claim: Claim | None = None
        self._crew: Crew | None = None
        self._folder: Path | None = None
        self._environments: Environments | None = None
        self._sandbox_url: str | None = None

    # ---- what there is
    @property
    def roles(self) -> list[str]:
        """`worker:QUEUE` (and `worker:QUEUE#2` …), `relay`, `maintenance`; not the sandbox, which always runs if it is needed."""
        return [*self._queues, "relay", "maintenance"]

    @property
    def data_dir(self) -> Path:
        """Where data, logs and the note for a second shell are."""
        assert self._folder, "the machine was not started"
        return self._folder

    @property
    def sandbox_url(self) -> str:
        """For SandboxClient. Raises Unavailable if a real provider is used."""
        if self._sandbox_url is None:
            raise Unavailable("there is no sandbox: RESEND_API_KEY is set")
        return self._sandbox_url

    @property
    def env(self) -> dict[str, str]:
        """A whole environment for product code: the publisher's URL."""
        return self._made.product

    @property
    def operator_env(self) -> dict[str, str]:
        """A whole environment for the command line, or for `App.from_settings`: publisher, maintenance and owner."""
        return self._made.operator

    @property
    def worker_env(self) -> dict[str, str]:
        """A whole environment for one more worker."""
        return self._made.worker

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run, by role; the sandbox too."""
        return self._running_crew.pids()

    @property
    def services(self) -> list[Service]:
        """What is real here, and what only stands in for it; addresses without passwords."""
        worker, redis = self._made.worker["NOTIF_DATABASE_URL"], self._made.worker["NOTIF_REDIS_URL"]
        told = self._given.betterstack_token is not None
        mail = self._given.resend_api_url or "https://api.resend.com"
        found = [
            Service("PostgreSQL", "embedded" if self.servers.postgres else "real", _bare(worker)),
            Service("Redis", "embedded" if self.servers.valkey else "real", _bare(redis)),
            Service("Resend", *(("sandbox", self.sandbox_url) if self.sandboxed else ("real", mail))),
        ]
        if told or self.sandboxed:
            alerts = ("real", self._given.betterstack_url or "Better Stack") if told else ("sandbox", self.sandbox_url)
        else:
            alerts = ("log", str(self.data_dir / "logs" / "maintenance.log"))
        return [*found, Service("alerts", *alerts)]

    # ---- start and stop
    def start(self) -> Self:
        """Return when every role says that it is up. Raises Refused (the data is in use), ConfigurationError, Unavailable."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Workers first (they drain), servers last. May be called at any time, any number of times."""
        if self._crew:
            for phase in (self._queues, ("relay", "maintenance"), ("sandbox",)):
                self._crew.stop((name for name in phase if name in self._crew), GRACE)
            self._crew.close()
            self._crew = None
        self.servers.stop()
        if self._claim:
            self._claim.release()
            self._claim = None
        if self._folder and self._data_dir is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def watch(self) -> NoReturn:
        """Until an exception from outside ends it: embedded servers that die are put back. Roles are put back anyway."""
        while True:
            time.sleep(LOOK)
            self.servers.look(self._on_event)

    def start_roles(self, names: Iterable[str]) -> None:
        """Start these too, and return when they are up."""
        self._until_up(self._running_crew.start(names))

    def stop_roles(self, names: Iterable[str]) -> None:
        """Stop these in good order; they stay stopped."""
        self._running_crew.stop(list(names), GRACE)

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a role (or the sandbox), and return the pid. A role that dies comes back by itself."""
        return self._running_crew.kill(role, number)

    def restart(self, role: str) -> None:
        """End a role in good order, and return when its next process is up."""
        self.stop_roles([role])
        self.start_roles([role])

    # ---- inside
    def _start(self) -> None:
        self._folder = self._data_dir or Path(tempfile.mkdtemp(prefix="notif-"))
        self._claim = Claim(self._folder)
        addresses = self.servers.start()
        if self.sandboxed:
            self._sandbox_url = f"http://127.0.0.1:{free_port()}"
        settings = self._given.model_copy(update={"data_dir": self._folder})
        self._environments = Environments(settings, addresses, self._sandbox_url, self._environ)
        self._crew = self._manned(self._environments)
        if self.sandboxed:
            self._crew.start(["sandbox"])
            self._until_sandbox_answers()
        self.start_roles(self.roles if self._wanted is None else self._wanted)
        made = self._environments
        self._claim.announce(Running(os.getpid(), made.note(made.operator), made.note(made.worker)))

    def _manned(self, made: Environments) -> Crew:
        crew = Crew(self.data_dir / "logs", self._on_event)
        command = (sys.executable, "-m", "notif")
        for name, queue in self._queues.items():
            crew.add(Role(name, (*command, "worker", queue)), made.worker)
        for name in ("relay", "maintenance"):
            crew.add(Role(name, (*command, name)), made.relay)
        if self._sandbox_url:
            where = ("--port", str(urlsplit(self._sandbox_url).port), "--journal", str(self.data_dir / "sandbox.jsonl"))
            crew.add(Role("sandbox", (*command, "sandbox", *where)), made.sandbox)
        return crew

    def _until_up(self, pids: Mapping[str, int]) -> None:
        """Until each of these processes has said, in `core.process`, that it is there."""
        database = Database(self._made.operator["NOTIF_DATABASE_MAINTENANCE_URL"], pool=1, name="notif up")
        processes, host = PostgresProcesses(database), socket.gethostname()
        try:
            end = time.monotonic() + READY
            while missing := set(pids.values()) - {each.pid for each in processes.list() if each.host == host}:
                running = self.pids
                for role, pid in pids.items():
                    if pid in missing and running.get(role) != pid:
                        raise Unavailable(f"{role} ended at its start; {self._last_words(role)}")
                    if pid in missing and time.monotonic() > end:
                        raise Unavailable(f"{role} isn't up after {READY:g} s; {self._last_words(role)}")
                time.sleep(0.03)
        finally:
            database.close()

    def _until_sandbox_answers(self) -> None:
        where, end = urlsplit(self.sandbox_url), time.monotonic() + READY
        while True:
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=5)
            try:
                connection.request("GET", "/_sandbox")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                if time.monotonic() > end:
                    raise Unavailable(f"sandbox isn't up after {READY:g} s; {self._last_words('sandbox')}") from None
            finally:
                connection.close()
            time.sleep(0.03)

    def _last_words(self, role: str) -> str:
        log = self.data_dir / "logs" / f"{role}.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"{log} ends with: {lines[-1]}" if lines else f"{log} is empty"

    @property
    def _made(self) -> Environments:
        assert self._environments, "the machine was not started"
        return self._environments

    @property
    def _running_crew(self) -> Crew:
        assert self._crew, "the machine was not started"
        return self._crew


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
