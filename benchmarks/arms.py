"""The contestants of the throughput benchmark: loaded with jobs first, then started, then watched until all are done."""

import signal
import subprocess
import sys
from typing import Protocol

import dramatiq

from benchmarks.rig import MESSAGE, ROOT, WORKER, Rig, until
from notif.envelope import new_job_id
from notif.process import tied

FENCE = """
CREATE SCHEMA IF NOT EXISTS bench;
CREATE TABLE IF NOT EXISTS bench.fence (
  job_id uuid NOT NULL, consumer varchar(80) NOT NULL, tenant_id uuid NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (job_id, consumer))
"""
STOP_SECONDS = 30


class Arm(Protocol):
    """One way to get a job done. `sends`: its jobs reach the sandbox. `pids` names the processes that do it, beside the servers."""

    name: str
    sends: bool

    def load(self, count: int) -> None: ...

    def start(self) -> None: ...

    @property
    def pids(self) -> dict[str, int]: ...

    def done(self) -> int:
        """How many jobs of the last load are done."""
        ...

    def finish(self) -> None:
        """Wait for what comes after the last job, and stop."""
        ...


class Notif:
    """The whole pipeline: outbox, relay, worker, provider, settle."""

    sends = True

    def __init__(self, rig: Rig, kind: str) -> None:
        self.name, self._rig, self._kind = f"notif, {kind}", rig, kind

    def load(self, count: int) -> None:
        self._rig.empty()
        self._rig.app.queue.publish_many(self._rig.jobs(count, self._kind))

    def start(self) -> None:
        self._rig.start("relay")
        self._rig.start(WORKER)

    @property
    def pids(self) -> dict[str, int]:
        pids = self._rig.machine.pids
        return {"worker": pids[WORKER], "relay": pids["relay"]}

    def done(self) -> int:
        return self._rig.sandbox.counts()["mails"]

    def finish(self) -> None:
        until(lambda: self._rig.waiting() == 0, "the outbox is empty")
        self._rig.stop(WORKER, "relay")


class Rival:
    """An actor of `benchmarks.rivals` under Dramatiq's own command line: one process, eight threads."""

    def __init__(self, rig: Rig, name: str, actor: str, *, pooled: bool = False) -> None:
        self.name, self._rig, self._actor = name, rig, actor
        self.sends = actor == "email"
        host, port, password = rig.redis_parts()
        redis = {"BENCH_REDIS_HOST": host, "BENCH_REDIS_PORT": str(port), "BENCH_REDIS_PASSWORD": password}
        urls = {"BENCH_DATABASE_URL": rig.admin_url("notif").replace("postgresql:", "postgresql+psycopg:", 1)}
        urls["BENCH_SANDBOX_URL"] = rig.machine.sandbox_url
        self._env = rig.process_env(**redis, **urls, **({"BENCH_POOLED": "1"} if pooled else {}))
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded = 0

    def load(self, count: int) -> None:
        """As Dramatiq documents it for other languages, which is as its own `send` does, but in one go."""
        self._rig.empty()
        self._rig.rows(FENCE)
        self._loaded = count
        pipeline = self._rig.redis.pipeline(transaction=False)
        for n in range(count):
            job, tenant = str(new_job_id()), str(self._rig.tenants[n % 10])
            options = {"redis_message_id": job}
            message: dramatiq.Message[None] = dramatiq.Message(
                self._actor, self._actor, (job, tenant, MESSAGE), {}, options, job
            )
            pipeline.hset(f"dramatiq:{self._actor}.msgs", job, message.encode())
            pipeline.rpush(f"dramatiq:{self._actor}", job)
        pipeline.execute()

    def start(self) -> None:
        flags = ("--processes", "1", "--threads", "8", "--queues", self._actor)
        command = (sys.executable, "-m", "dramatiq", "benchmarks.rivals", *flags)
        with (self._rig.machine.data_dir / "logs" / "rival.log").open("ab") as log:
            self._process = subprocess.Popen(
                tied(command, signal.SIGTERM), env=self._env, cwd=ROOT, stdout=log, stderr=log
            )

    @property
    def pids(self) -> dict[str, int]:
        assert self._process
        return {"worker": self._process.pid}

    def done(self) -> int:
        if self.sends:
            return self._rig.sandbox.counts()["mails"]
        return self._loaded - self._left()

    def finish(self) -> None:
        assert self._process
        until(lambda: not self._left(), "the queue is empty")
        self._process.terminate()
        self._process.wait(STOP_SECONDS)

    def _left(self) -> int:
        """Messages not yet acked."""
        return int(self._rig.redis.hlen(f"dramatiq:{self._actor}.msgs"))
