"""What the worker entry points share: a broker for Dramatiq's command line, or a worker run here."""

import signal
import sys
import threading

import dramatiq

from notif.bootstrap import App, WorkerProcess
from notif.bootstrap.log import quiet_libraries
from notif.bootstrap.worker import DRAIN
from notif.errors import NotifError

WATCH = 0.5


def install(*queues: str) -> dramatiq.Broker:
    """For `dramatiq workers.transactional`: the broker of these queues, as Dramatiq's own. Bad configuration ends the process."""
    quiet_libraries()
    try:
        broker = WorkerProcess(App.from_settings(), queues).broker
    except NotifError as error:
        sys.exit(f"notif: {error}")
    dramatiq.set_broker(broker)
    return broker


def run(process: WorkerProcess, stop: threading.Event) -> None:
    """Until `stop`; then started calls finish and settle, and what is prefetched goes back to Redis unclaimed."""
    broker = process.broker
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=process.app.config.worker.threads)
    worker.start()
    while not stop.wait(WATCH):
        dead = [t.name for t in (*worker.workers, *worker.consumers.values()) if not t.is_alive()]
        if dead:
            process.app.log.error(
                "threads have died: the process ends, and its supervisor starts a new one", threads=dead
            )
            sys.exit(1)
    worker.stop(timeout=int(DRAIN * 1000))
    process.close()


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
