"""A relay and a worker moved by hand, step by step: the real SQL, the real Redis, the real provider client, no process."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cached_property

from notif.adapters.postgres.ledger import PostgresLedger, PostgresPoison
from notif.adapters.postgres.relay import PostgresCircuits, PostgresClosings, PostgresOutbox
from notif.adapters.redis_carrier import RedisCarrier
from notif.bootstrap import WorkerProcess
from notif.bootstrap.app import boottime
from notif.circuit import Circuit
from notif.closings import Closings
from notif.consume import Consumer, Desk
from notif.deliver import Channel, Deliverer
from notif.handlers import HandlerConsumer
from notif.leases import Leases
from notif.ports import LedgerPort, ProviderPort, Reference, Terms, Turn
from notif.relay import NOBODY
from notif.retry import RetryPolicy
from notif.surprises import Surprises
from tests.kit import EMAIL, Installation


class Hands:
    """`ledger`, `keyed`, `retries`, `now` and `clock_offset` may be changed at any time. Close it: it holds connections."""

    def __init__(self, notif: Installation, provider: ProviderPort | None = None) -> None:
        self.app = notif.app_as("notif_worker")
        self.keyed, self.clock_offset, self.retries = True, 0.0, RetryPolicy()
        self.chance: Callable[[], float] = lambda: 0.5
        self.now: Callable[[], datetime] = self.app.now
        self.outbox = PostgresOutbox(self.app.maintenance)
        self.carrier = RedisCarrier(self.app.redis_url)
        self.database = self.app.database(notif.servers.url("notif_worker", notif.database), pool=8, name="hands")
        self.ledger: LedgerPort = PostgresLedger(self.database)
        self.closings = Closings(PostgresClosings(self.database), self.clock)
        self.circuit = Circuit(PostgresCircuits(self.database), self.closings, self.app.log)
        self.leases = Leases(self.ledger, self.terms().lease, self.clock)
        self.provider = provider or self.app.provider("resend")  # the SDK has one key a process
        self.surprises = Surprises()
        self.carrier.alive()

    def clock(self) -> float:
        return boottime() + self.clock_offset

    @cached_property
    def worker(self) -> WorkerProcess:
        """The whole process' parts, for its broker."""
        return WorkerProcess(self.app, ("transactional", "loyalty"))

    def terms(self, queue: str = EMAIL) -> Terms:
        terms = self.app.terms(queue)
        return terms if self.keyed else replace(terms, key_lifetime=None)

    def pick(self, queue: str = EMAIL, window: int = 1000) -> list[Reference]:
        """What the relay raises now; not pushed."""
        return self.outbox.pick([Turn(self.terms(queue), window, NOBODY, None)]).refs

    def push(self, queue: str = EMAIL) -> list[Reference]:
        refs = self.pick(queue)
        self.carrier.push(refs)
        return refs

    def handle(self, ref: Reference) -> str:
        return self._consumer(ref.queue).handle(ref)

    def turn(self, queue: str = EMAIL) -> list[str]:
        """Relay and worker, once."""
        return [self.handle(ref) for ref in self.pick(queue)]

    def close(self) -> None:
        self.provider.close()
        self.carrier.close()
        if "worker" in self.__dict__:
            self.worker.close()
        self.app.close()

    def _consumer(self, queue: str) -> Consumer:
        desk = Desk(
            ledger=self.ledger,
            poison=PostgresPoison(self.database),
            kinds=self.app.kinds,
            leases=self.leases,
            log=self.app.log,
            stopping=lambda: False,
            surprises=self.surprises,
            chance=self.chance,
        )
        if queue in self.app.handlers:
            return HandlerConsumer(desk, self.terms(queue), self.retries, self.app.handlers[queue])
        channel = Channel(self.provider, self.app.composer, self.closings, 1.0, self.now, self.circuit)
        return Deliverer(desk, self.terms(queue), self.retries, channel)
