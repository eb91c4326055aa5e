"""A worker process: its consumers, its threads in the background, and how it starts and stops."""

import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from notif.adapters.dramatiq_worker import Lifecycle, NotifBroker, declare
from notif.adapters.postgres.database import Database
from notif.adapters.postgres.ledger import PostgresLedger, PostgresPoison
from notif.adapters.postgres.operations import PostgresProcesses
from notif.adapters.postgres.relay import PostgresCircuits, PostgresClosings
from notif.bootstrap.app import App, boottime, required
from notif.bootstrap.checks import until_right
from notif.bootstrap.log import tell_rest
from notif.circuit import Circuit
from notif.closings import REFRESH, Closings
from notif.consume import Consumer, Desk
from notif.deliver import Channel, Deliverer
from notif.errors import ConfigurationError, NotifError, nearest
from notif.handlers import HandlerConsumer
from notif.lanes import Lane, parse_queue
from notif.leases import RENEWAL, Leases
from notif.periodic import Periodic
from notif.ports import ProviderPort, Reference
from notif.surprises import Surprises

DRAIN = 25.0
"""Seconds a stopping worker gives its started calls: a call's deadline, a settle, and some. Grace periods must be longer."""
BEAT = 5.0
REAP = 2.0
"""Seconds between two looks for silent processes: with 10 s of silence, references of a killed one are back within 13 s."""


class WorkerProcess:
    """Everything one worker process is made of; nothing is connected before the broker is started.

    `queues`: names of queues, or of lanes for all queues of a lane. Raises ConfigurationError.
    """

    def __init__(self, app: App, queues: Sequence[str]) -> None:
        self.app = app
        self.queues = resolve(app, queues)
        self._stopping = threading.Event()
        self._surprises = Surprises()
        self._url = required("NOTIF_DATABASE_URL", app.settings.database_url, "a worker")
        # Renewals and closings never wait for a connection behind a handler.
        self._background = app.database(self._url, pool=3, name="notif worker background")
        self.closings = Closings(PostgresClosings(self._background), boottime)
        self._circuit = Circuit(PostgresCircuits(self._background), self.closings, app.log)
        self._leases = Leases(PostgresLedger(self._background), app.config.worker.lease, boottime)
        self._providers: dict[str, ProviderPort] = {}
        self.broker = NotifBroker(
            app.redis_url,
            consumers={queue: app.config.consumer(queue) for queue in self.queues},
            poison=PostgresPoison(self._background),
            healthy=self.closings.fresh,
            log=app.log,
            middleware=[Lifecycle(self, drain_seconds=DRAIN, log=app.log)],
        )
        self._checked = False
        self.handlers = self._handlers()
        declare(self.broker, self.handlers)

    def check(self, stop: threading.Event) -> None:
        """Return when both servers are right, or `stop` is set. Raises ConfigurationError."""
        until_right(self.app, self._background, stop)
        self._checked = True

    def close(self) -> None:
        """Close every connection; after the broker's worker has stopped."""
        self.broker.close()
        for provider in self._providers.values():
            provider.close()
        self.app.close()

    def _handlers(self) -> dict[str, Callable[[Reference], str]]:
        threads = self.app.config.worker.threads
        desks: dict[Lane | None, Desk] = {}
        handlers: dict[str, Callable[[Reference], str]] = {}
        for queue in self.queues:
            parsed = parse_queue(queue)
            lane = parsed[1] if parsed else None
            if lane not in desks:  # marketing never shares a pool with transactional
                desks[lane] = self._desk(
                    self.app.database(self._url, pool=threads, name=f"notif worker {lane or queue}")
                )
            handlers[queue] = self._consumer(queue, desks[lane]).handle
        return handlers

    def _desk(self, database: Database) -> Desk:
        return Desk(
            ledger=PostgresLedger(database),
            poison=PostgresPoison(database),
            kinds=self.app.kinds,
            leases=self._leases,
            log=self.app.log,
            stopping=self._stopping.is_set,
            surprises=self._surprises,
        )

    def _consumer(self, queue: str, desk: Desk) -> Consumer:
        terms, retries = self.app.terms(queue), self.app.config.retry(queue)
        if terms.provider is None:
            if queue not in self.app.handlers:
                raise ConfigurationError(f"queue {queue!r}: no consumer is registered for it; NOTIF_APP names who does")
            return HandlerConsumer(desk, terms, retries, self.app.handlers[queue])
        if terms.provider not in self._providers:
            self._providers[terms.provider] = self.app.provider(terms.provider)
        deadline = self.app.config.providers[terms.provider].deadline.total_seconds()
        provider = self._providers[terms.provider]
        channel = Channel(provider, self.app.composer, self.closings, deadline, self.app.now, self._circuit)
        return Deliverer(desk, terms, retries, channel)

    def boot(self) -> None:
        """Under Dramatiq's own command line nobody has checked yet. Ends the process with one line if something is wrong."""
        if not self._checked:
            try:
                self.check(threading.Event())
            except NotifError as error:
                sys.exit(f"notif: {error}")

    def start(self) -> list[threading.Thread]:
        """What runs in the background; answers the threads without which the process is of no use."""
        beat = PostgresProcesses(self._background)
        lane = " ".join(self.queues)
        log = self.app.log
        self._tasks = [
            Periodic("closings", REFRESH, self._circuit.refresh, log),
            Periodic("leases", RENEWAL, self._leases.renew, log),
            Periodic("beat", BEAT, lambda: beat.beat("worker", lane, self._surprises.trouble), log),
            Periodic("reaper", REAP, self.broker.reap, log),
        ]
        for task in self._tasks:
            task.start()
        log.info("worker started", queues=list(self.queues))
        return [task.thread for task in self._tasks]

    def drain(self) -> None:
        """It has been told to stop: after the grace period nothing is repeated any more."""
        self._grace = threading.Timer(DRAIN, self._stopping.set)
        self._grace.daemon = True
        self._grace.start()

    def stop(self) -> None:
        """The background ends; after the drain."""
        self._grace.cancel()
        for task in self._tasks:
            task.stop()
        self.app.log.info("worker stopped", queues=list(self.queues))
        tell_rest(self.app.log)


def resolve(app: App, names: Iterable[str], channel: str | None = None) -> tuple[str, ...]:
    """Queues of lanes and queues, each once, in the configuration's order. Raises ConfigurationError with the nearest name."""
    known = app.config.queue_names
    chosen: set[str] = set()
    for name in names:
        if name in tuple(Lane):
            chosen.update(app.queues_of(Lane(name)))
        elif name in known:
            chosen.add(name)
        else:
            raise ConfigurationError(
                f"queue: {name!r} is no lane and no queue; {nearest(name, [*(lane.value for lane in Lane), *known])}"
            )
    found = tuple(queue for queue in known if queue in chosen and channel in (None, (parse_queue(queue) or ("",))[0]))
    if not found:
        raise ConfigurationError(f"queue: none is left of {', '.join(names)}; the configuration has {', '.join(known)}")
    return found
