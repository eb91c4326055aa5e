"""An installation for tests: real servers, real processes of every role, the sandbox for what is outside."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import redis

from notif.bootstrap import App
from notif.envelope import Envelope
from notif.ports import Publication, Tenant
from notif.sandbox import Sandbox, SandboxClient
from tests.servers import Servers

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "tests" / "config.yaml"
T = TypeVar("T")
EMAIL = "notif.email.transactional"


def eventually(look: Callable[[], T], *, within: float = 30.0, what: str = "") -> T:
    """The first true answer of `look`; fails after `within` seconds, which are for liveness, not for speed."""
    end = time.monotonic() + within
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {within} s: {what or look}")
        time.sleep(0.02)


class Proc:
    """One real process of a role."""

    def __init__(self, argv: list[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(argv, env=dict(env), stdout=out, stderr=out, cwd=ROOT)
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, timeout: float = 40.0) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        return self._process.wait(timeout)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


class Installation:
    """What a test has of notif: publish with `send`, start roles with `worker` and `relay`, look with `mails` and `rows`."""

    def __init__(self, servers: Servers, database: str, sandbox: Sandbox, folder: Path, config: Path = CONFIG) -> None:
        self.servers, self.database, self.folder, self.config = servers, database, folder, config
        self.sandbox = SandboxClient(sandbox.url)
        self._sandbox_url = sandbox.url
        self.redis: redis.Redis = redis.Redis.from_url(servers.redis_url)
        self._processes: list[Proc] = []
        self.app = self.app_as("notif_publisher")
        self.tenant = self.add_tenant("Acme")

    def env(self, role: str, **more: str) -> dict[str, str]:
        """A process' environment: nothing is inherited that could lead elsewhere."""
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "PYTHONPATH": str(ROOT),
            "NOTIF_CONFIG": str(self.config),
            "NOTIF_DATABASE_URL": self.servers.url(role, self.database),
            "NOTIF_DATABASE_MAINTENANCE_URL": self.servers.url("notif_maintenance", self.database),
            "NOTIF_REDIS_URL": self.servers.redis_url,
            "RESEND_API_KEY": "re_sandbox",
            "RESEND_API_URL": self._sandbox_url,
            "NOTIF_APP": "tests.product:register",
            **more,
        }

    def app_as(self, role: str) -> App:
        names = ("NOTIF_", "RESEND_", "BETTERSTACK_")
        return App.from_settings({k: v for k, v in self.env(role).items() if k.startswith(names)})

    def add_tenant(self, name: str) -> uuid.UUID:
        tenant = uuid.uuid4()
        self.app.tenants.add(Tenant(tenant, name, "UTC", "standard", uuid.UUID(int=0), True))
        return tenant

    # ---- processes
    def process(self, *argv: str, **more: str) -> Proc:
        started = Proc(
            [sys.executable, *argv], self.env("notif_worker", **more), self.folder / f"log{len(self._processes)}"
        )
        self._processes.append(started)
        return started

    def worker(self, *queues: str, **more: str) -> Proc:
        """A worker, once it says that it is there."""
        started = self.process("-m", "notif", "worker", *(queues or ("transactional",)), **more)
        self.until_up(started)
        return started

    def relay(self, **more: str) -> Proc:
        started = self.process("-m", "notif", "relay", **more)
        self.until_up(started)
        return started

    def maintenance(self, **more: str) -> Proc:
        started = self.process("-m", "notif", "maintenance", **more)
        self.until_up(started)
        return started

    def until_up(self, process: Proc) -> None:
        def up() -> bool:
            assert process.alive, process.log.read_text()
            return bool(self.rows("SELECT 1 FROM core.process WHERE pid = %s", process.pid))

        eventually(up, within=120, what=f"process {process.pid} is up")

    def close(self) -> None:
        for process in self._processes:
            if process.alive:
                process.kill()
        self.app.close()
        self.redis.close()

    # ---- publish
    def envelope(self, kind: str = "order.shipped", **data: Any) -> Envelope:
        base = {
            "order.shipped": {"email": "ann@example.test", "name": "Ann", "order_number": "A-1", "carrier": "DHL"},
            "email.message": {
                "from": "shop@mail.acme.test",
                "to": "ann@example.test",
                "subject": "Hi",
                "text": "hello",
            },
        }.get(kind, {})
        return Envelope.new(data.pop("tenant", self.tenant), kind, {**base, **data})

    def send(self, kind: str = "order.shipped", **data: Any) -> uuid.UUID:
        envelope = self.envelope(kind, **data)
        self.app.queue.publish(self.app.kinds.get(kind).all_queues, envelope)
        return envelope.job_id

    def send_many(self, count: int, kind: str = "order.shipped", **data: Any) -> list[uuid.UUID]:
        queues = self.app.kinds.get(kind).all_queues
        jobs = [Publication(queues, self.envelope(kind, **data)) for _ in range(count)]
        self.app.queue.publish_many(jobs)
        return [job.envelope.job_id for job in jobs]

    # ---- look
    def rows(self, query: str, *parameters: Any) -> list[Any]:
        with psycopg.connect(self.servers.url("notif_owner", self.database), autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def admin(self, query: str) -> list[Any]:
        """As the server's administrator, who sees the product's tables too."""
        with psycopg.connect(self.servers.admin(self.database), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def due(self) -> None:
        """Time passes: every timer has run out."""
        self.rows("UPDATE core.outbox SET due_at = now() - interval '1 ms' WHERE due_at > now()")

    def one(self, query: str, *parameters: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        found = self.rows(query, *parameters)
        return found[0][0] if found else None

    def mails(self) -> list[dict[str, Any]]:
        return self.sandbox.mails()

    def mails_of(self, job: uuid.UUID) -> list[dict[str, Any]]:
        return [mail for mail in self.mails() if mail["tags"]["job"] == str(job)]

    def state(self, job: uuid.UUID, queue: str = EMAIL) -> str:
        return next((s.state for s in self.app.queue.status(job) if s.queue == queue), "unknown")

    def until(self, job: uuid.UUID, state: str, *, within: float = 90.0, queue: str = EMAIL) -> None:
        eventually(
            lambda: self.state(job, queue) == state, within=within, what=f"{job} {state}, is {self.state(job, queue)}"
        )

    def until_empty(self, within: float = 60.0) -> None:
        eventually(lambda: self.one("SELECT count(*) FROM core.outbox") == 0, within=within, what="outbox empty")


def patient(notif: Installation) -> Path:
    """Its configuration with calls that may be held for as long as the preparations take."""
    text = notif.config.read_text().replace("lease: 6s", "lease: 25s").replace("deadline: 1s", "deadline: 20s")
    path = notif.folder / "patient.yaml"
    path.write_text(text.replace("../config/templates", str(ROOT / "config" / "templates")))
    return path
