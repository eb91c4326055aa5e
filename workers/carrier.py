"""What the worker entry points share: a broker for Dramatiq's command line, or a worker run here."""

import os
import signal
import sys
import threading

import dramatiq

from notif.bootstrap import App, WorkerProcess
from notif.bootstrap.log import quiet_libraries
from notif.bootstrap.worker import DRAIN
from notif.errors import NotifError


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
    """Until `stop`; then started calls finish and settle, and what is prefetched goes back to Redis unclaimed.

    Raises ConfigurationError if a server is not right for us.
    """
    process.check(stop)
    if stop.is_set():
        return
    broker = process.broker
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=process.app.config.worker.threads)
    worker.start()
    stop.wait()
    worker.stop(timeout=int(DRAIN * 1000))
    process.close()


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def leave() -> None:
    """The end of a role's process, with whatever threads it still has: they hang in a call, and have had their time.

    The interpreter's own end would take things away from under them, and say so in a traceback.
    """
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
