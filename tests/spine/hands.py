"""A relay and a worker moved by hand, step by step: the real SQL, the real Redis, the real provider client, no process."""

from notif.adapters.postgres.ledger import PostgresLedger
from notif.adapters.postgres.relay import PostgresOutbox
from notif.adapters.redis_carrier import RedisCarrier
from notif.bootstrap import WorkerProcess
from notif.ports import Reference, Turn
from notif.relay import NOBODY
from tests.kit import EMAIL, Installation


class Hands:
    """Close it at the end: it holds connections."""

    def __init__(self, notif: Installation, *queues: str) -> None:
        self.notif = notif
        self.app = notif.app_as("notif_worker")
        self.worker = WorkerProcess(self.app, queues or ("transactional", "marketing", "loyalty"))
        self.outbox = PostgresOutbox(self.app.maintenance)
        self.carrier = RedisCarrier(self.app.redis_url)
        url = notif.servers.url("notif_worker", notif.database)
        self.ledger = PostgresLedger(self.app.database(url, pool=2, name="hands"))
        self.carrier.alive()

    def pick(self, queue: str = EMAIL, window: int = 1000) -> list[Reference]:
        """What the relay raises now; not pushed."""
        return self.outbox.pick([Turn(self.app.terms(queue), window, NOBODY, None)]).refs

    def push(self, queue: str = EMAIL) -> list[Reference]:
        refs = self.pick(queue)
        self.carrier.push(refs)
        return refs

    def handle(self, ref: Reference) -> str:
        return self.worker.handlers[ref.queue](ref)

    def turn(self, queue: str = EMAIL) -> list[str]:
        """Relay and worker, once."""
        return [self.handle(ref) for ref in self.pick(queue)]

    def close(self) -> None:
        self.worker.close()
        self.carrier.close()
