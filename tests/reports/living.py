"""Relay and worker on threads of the tests' own process: the real loops, Dramatiq and servers, and nothing to boot."""

import io
import threading
from collections.abc import Sequence

import dramatiq

from notif.bootstrap import WorkerProcess
from notif.bootstrap.app import App
from notif.bootstrap.log import make_log
from notif.bootstrap.relay import run_relay
from notif.bootstrap.worker import DRAIN
from tests.kit import Installation, eventually


class Living:
    """`relay` and `worker` start them, `stop` ends the worker in good order; one worker at a time: the SDK has one key."""

    def __init__(self, notif: Installation) -> None:
        self._notif = notif
        self.log = io.StringIO()
        self._over = threading.Event()
        self._relay: threading.Thread | None = None
        self._process: WorkerProcess | None = None
        self._worker: dramatiq.Worker | None = None

    def _app(self) -> App:
        app = self._notif.app_as("notif_worker")
        app.log = make_log(self.log)
        return app

    def relay(self) -> None:
        app = self._app()

        def run() -> None:
            run_relay(app, self._over)
            app.close()

        self._relay = threading.Thread(target=run, name="relay")
        self._relay.start()

    def worker(self, *queues: str, threads: int = 8) -> WorkerProcess:
        """As `workers.carrier.run` does it."""
        self._process = WorkerProcess(self._app(), queues or ("transactional",))
        self._process.broker.emit_after("process_boot")
        self._worker = dramatiq.Worker(self._process.broker, worker_threads=threads, worker_timeout=100)
        self._worker.start()
        eventually(self._process.closings.fresh, what="the worker has read the closings")
        return self._process

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """Dramatiq's, of the worker that runs."""
        assert self._worker
        return [*self._worker.workers, *self._worker.consumers.values()]

    def stop(self) -> None:
        """The worker's end in good order, as after SIGTERM."""
        if self._worker and self._process:
            self._worker.stop(timeout=int(DRAIN * 1000))
            self._process.close()
        self._worker = self._process = None

    def close(self) -> None:
        self._notif.sandbox.release()
        self.stop()
        self._over.set()
        if self._relay:
            self._relay.join(20)
