"""The whole system as real processes, two of most, each on its own way to its services; thrown away at the end."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg

from chaos.clocks import FAKED, Clock, tidy
from chaos.network import Network
from chaos.product import TABLE
from chaos.restarts import RollingRestart
from chaos.services import Services, patiently
from notif.adapters.embedded_process import free_port
from notif.bootstrap import App
from notif.bootstrap.crew import Crew
from notif.bootstrap.environments import Environments
from notif.errors import NotFound, Unavailable
from notif.ports import Tenant
from notif.sandbox import SandboxClient
from notif.settings import SINGLE_CELL, Settings
from notif.supervisor import Role

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
GRACE = 2.0
"""Seconds a stopping process gets; then it is killed: by then all is judged, or given up."""


class Plant:
    """A context manager: servers, processes, the ways between them, and every way to harm them.

    Start it on the main thread: the servers end with the thread that starts them.
    """

    def __init__(self, on_event: Callable[[str, str], None], *, disks: bool, faked: Collection[str]) -> None:
        """`disks`: every server has a disk of its own; `chaos.disks.own_mounts` was called, and allowed it.

        `faked`: processes with a clock of their own. No more than are needed: what the library does to threads costs such a
        process four times as much as all it does.
        """
        self._on_event, self._disks, self._faked = on_event, disks, faked
        self._open = ExitStack()
        self.tenants: list[UUID] = []
        self._clocks: dict[str, Clock] = {}
        self._pids: set[int] = set()
        self._rolling: RollingRestart | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="notif-chaos-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.logs.mkdir()
            given = {name: os.environ[name] for name in ("NOTIF_PG_BIN", "NOTIF_VALKEY_BIN") if name in os.environ}
            environ = {"NOTIF_CONFIG": str(CONFIG), "NOTIF_APP": "chaos.product:register", **given}
            settings = Settings.from_environment(environ)
            self._settings = settings.model_copy(update={"data_dir": self.folder})
            self.network = stack.enter_context(Network())
            self.services = Services(settings, self.folder / "data", self.logs, disks=self._disks)
            stack.callback(lambda: tidy(self._pids | self.services.pids))
            stack.callback(self.services.close)
            self._addresses = self.services.start()
            self.sandbox_url = f"http://127.0.0.1:{free_port()}"
            self._control = SandboxClient(self.sandbox_url, timeout=5.0)
            self._crew = Crew(self.logs, self._heard)
            stack.callback(self._crew.close)
            stack.callback(lambda: self._crew.stop(ROLES, GRACE))
            stack.callback(self._thaw)
            stack.callback(self.end_restarts)
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

    # ---- what can be done to it
    def signal(self, process: str, number: int) -> None:
        """Does nothing if it isn't running at this moment."""
        with contextlib.suppress(NotFound):
            self._crew.kill(process, number)

    def script(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Replace the provider's script of faults; waits for a sandbox that is being restarted."""
        patiently(lambda: self._control.faults([dict(fault) for fault in faults]))

    def unverify(self, domains: Sequence[str]) -> None:
        """The sender domains that the provider has not verified, in place of those before."""
        patiently(lambda: self._control.limits(unverified=domains))

    def resume(self, provider: str, domain: str) -> None:
        """As an operator does; one who doesn't get through leaves it to the probe."""
        with contextlib.closing(self.app(OPERATOR)) as app, contextlib.suppress(Unavailable):
            app.upkeep.resume(provider, domain, app.provider_queues[provider], "chaos")

    def set_clock(self, process: str, off_by: float) -> None:
        self._clocks[process].off_by(off_by)

    def restart_all(self) -> None:
        """Every process of the product in turn, meanwhile."""
        names = [name for name in ROLES if name != SANDBOX]
        self._rolling = RollingRestart(names, self._terminate, self._replaced, self._on_event)
        self._rolling.start()

    def end_restarts(self) -> None:
        if self._rolling:
            self._rolling.end()

    def heal(self) -> None:
        """Whatever was done to it, everything runs, reachable and unharmed. Raises Unavailable."""
        self.end_restarts()
        self._thaw()
        self.network.clear()
        for clock in self._clocks.values():
            clock.off_by(0.0)
        self.services.heal()
        self._until_up()
        self.script([])
        self.unverify([])

    def heal_at_once(self) -> None:
        """Nothing is held up any more; what was ended is left as it is."""
        self._thaw()
        self.network.clear()

    def waiting(self) -> int:
        """Rows in the outbox."""
        return int(self.services.rows("SELECT count(*) FROM core.outbox")[0][0])

    # ---- inside
    def _man(self) -> None:
        self.services.rows(TABLE)
        (self.folder / "clocks").mkdir()
        for name, role in ROLES.items():
            made = self._environments(name)
            if name in WORKERS:
                env, arguments = made.worker, ["worker", role]
            elif name == SANDBOX:
                port, journal = urlsplit(self.sandbox_url).port, self.folder / "sandbox.jsonl"
                env, arguments = made.sandbox, [SANDBOX, "--port", str(port), "--journal", str(journal)]
            else:
                env, arguments = made.relay, [role]
            command = (sys.executable, "-m", "notif", *arguments)
            if name in self._faked:
                self._clocks[name] = Clock(self.folder / "clocks" / name)
                command = (*self._clocks[name].command(), *command)
                env = {**env, "PYTHONPATH": os.pathsep.join((str(FAKED), env["PYTHONPATH"]))}
            self._crew.add(Role(name, command), env)
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
        pids, known = self._crew.pids(), self._known()
        missing = [name for name in ROLES if name != SANDBOX and pids.get(name) not in known]
        try:
            self._control.counts()
        except OSError:
            missing.append(SANDBOX)
        return missing

    def _known(self) -> set[int]:
        """Pids of the processes that have said that they are there."""
        return {pid for (pid,) in self.services.rows("SELECT pid FROM core.process")}

    def _terminate(self, process: str) -> int | None:
        with contextlib.suppress(NotFound):
            return self._crew.kill(process, signal.SIGTERM)
        return None

    def _replaced(self, process: str, pid: int | None) -> bool:
        now = self._crew.pids().get(process)
        with contextlib.suppress(psycopg.OperationalError):
            return now not in (None, pid) and now in self._known()
        return False

    def _heard(self, role: str, text: str) -> None:
        if text.startswith("started, pid "):
            self._pids.add(int(text.rpartition(" ")[2]))
        self._on_event(role, text)

    def _thaw(self) -> None:
        """Nothing is stopped: a stopped process can't even be ended in good order."""
        for name in self._crew.pids():
            self.signal(name, signal.SIGCONT)
        self.services.thaw()
