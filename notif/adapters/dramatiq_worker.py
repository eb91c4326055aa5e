"""Dramatiq as carrier: its worker threads, acks and command line; our consumer, our middleware, no delay ever.

Dramatiq's own consumer knows no ids of what it fetched: one body that is no message strands its neighbours. Ours fetches pairs.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import current_millis
from dramatiq.errors import ConnectionClosed
from redis.exceptions import RedisError

from notif.adapters.redis_carrier import NAMESPACE, client, decode, named
from notif.errors import Unavailable
from notif.ports import Log, PoisonPort, Reference

HEARTBEAT_TIMEOUT = 10_000
"""Milliseconds after which a silent process' unacked references go back. The same everywhere, above the longest stall."""
BELL_WAIT = 1.0
"""Seconds an idle consumer waits for a push, in one blocking command; below the client's socket timeout."""
FULL_WAIT = 0.002
"""Seconds until a full consumer looks whether a thread has freed a place."""
SICK_WAIT = 0.2
"""Seconds between looks whether Postgres answers again; nothing is fetched meanwhile."""

# Like Dramatiq's own fetch (heartbeat, then ids into the ack set), but with the ids. An id without a body names nothing: dropped.
FETCH = """
local queue = KEYS[1] .. ':' .. ARGV[2]
redis.call('ZADD', KEYS[1] .. ':__heartbeats__', ARGV[1], ARGV[3])
local found = {}
for i = 1, tonumber(ARGV[4]) do
  local id = redis.call('LPOP', queue)
  if not id then break end
  local body = redis.call('HGET', queue .. '.msgs', id)
  if body then
    redis.call('SADD', KEYS[1] .. ':__acks__.' .. ARGV[3] .. '.' .. ARGV[2], id)
    table.insert(found, id)
    table.insert(found, body)
  end
end
return found
"""


class NotifBroker(RedisBroker):
    """A RedisBroker without delay queues, whose consumers are ours.

    `healthy` answers whether Postgres does: nothing is fetched while it doesn't.
    """

    def __init__(
        self,
        url: str,
        *,
        consumers: Mapping[str, str],
        poison: PoisonPort,
        healthy: Callable[[], bool],
        log: Log,
        middleware: Sequence[dramatiq.Middleware],
    ) -> None:
        # Workers are patient: what they hold is worth waiting for. The reaping is done by `reap`, never by chance.
        super().__init__(  # type: ignore[no-untyped-call]
            client=client(url, retries=30, timeout=5.0),
            middleware=list(middleware),
            namespace=NAMESPACE,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            maintenance_chance=0,
        )
        self.consumers, self.poison, self.healthy, self.log = consumers, poison, healthy, log
        self.draining = False
        self.fetch = self.client.register_script(FETCH)

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        del message, delay
        raise TypeError("only the relay puts references on queues: publish through the QueuePort")

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        del timeout  # an idle consumer waits for the bell
        return ReferenceConsumer(self, queue_name, prefetch)

    def close(self) -> None:
        self.client.close()

    def reap(self) -> None:
        """Give back what processes held that no longer say anything. Raises RedisError."""
        self.maintenance_chance = 1_000_000
        try:
            for queue in self.queues:
                self.do_qsize(queue)
        finally:
            self.maintenance_chance = 0


class ReferenceConsumer(dramatiq.Consumer):
    """One queue of one process. What is no reference becomes a dead letter and leaves Redis; its neighbours notice nothing."""

    def __init__(self, broker: NotifBroker, queue: str, prefetch: int) -> None:
        self._broker, self._queue, self._prefetch = broker, queue, prefetch
        self._fetched: list[tuple[bytes, bytes]] = []
        self._unacked: set[bytes] = set()

    def __next__(self) -> dramatiq.MessageProxy | None:
        try:
            if not self._fetched:
                self._fetch()
            while self._fetched:
                identifier, raw = self._fetched.pop(0)
                message = self._message(identifier, raw)
                if message is not None:
                    return message
        except RedisError as error:
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
        return None

    def ack(self, message: dramatiq.MessageProxy) -> None:
        self._gone(message.message_id.encode())

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Only Dramatiq's own surprises end here: the row's timer brings the job back, so its reference may go."""
        self._gone(message.message_id.encode())

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        self._give_back([message.message_id.encode() for message in messages])

    def close(self) -> None:
        self._give_back([identifier for identifier, _ in self._fetched])
        self._fetched = []

    def _fetch(self) -> None:
        if self._broker.draining or not self._broker.healthy():
            time.sleep(SICK_WAIT)
            return
        room = self._prefetch - len(self._unacked)
        if room <= 0:
            time.sleep(FULL_WAIT)
            return
        arguments: list[Any] = [current_millis(), self._queue, self._broker.broker_id, room]
        found = self._broker.fetch(keys=[NAMESPACE], args=arguments)
        self._fetched = list(zip(found[::2], found[1::2], strict=True))
        self._unacked.update(found[::2])
        if not found:
            self._broker.client.blpop([f"{NAMESPACE}:{self._queue}.bell"], timeout=BELL_WAIT)

    def _message(self, identifier: bytes, raw: bytes) -> dramatiq.MessageProxy | None:
        try:
            decode(self._queue, identifier, raw)
        except ValueError as error:
            self._bury(identifier, raw, str(error))
            return None
        return dramatiq.MessageProxy(dramatiq.Message(**json.loads(raw)))

    def _bury(self, identifier: bytes, raw: bytes, error: str) -> None:
        """Letter first, then off Redis: a crash between the two finds the letter there."""
        name = identifier.decode(errors="backslashreplace").replace("\0", "\\0")[:200]
        key = named(name)
        ref = Reference(key[0], self._queue, UUID(int=0), key[1]) if key else None
        try:
            self._broker.poison.bury(self._queue, self._broker.consumers[self._queue], name, ref, raw, error)
        except Unavailable as unavailable:
            self._broker.log.warning("poison waits for Postgres", queue=self._queue, error=str(unavailable))
            self._give_back([identifier])
            return
        self._broker.log.warning("poison buried", queue=self._queue, message_id=name, error=error)
        self._gone(identifier)

    def _gone(self, identifier: bytes) -> None:
        try:
            self._broker.do_ack(self._queue, identifier)
        except RedisError as error:  # Dramatiq knows ConnectionError only, and would never ack after a time-out
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
        self._unacked.discard(identifier)

    def _give_back(self, identifiers: list[bytes]) -> None:
        if not identifiers:
            return
        try:
            self._broker.do_requeue(self._queue, *identifiers)
        except RedisError as error:
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
        self._unacked.difference_update(identifiers)


def declare(broker: NotifBroker, handlers: Mapping[str, Callable[[Reference], str]]) -> None:
    """One actor per queue, all from this one loop."""
    for queue, handle in handlers.items():
        dramatiq.actor(actor_name=queue, queue_name=queue, broker=broker)(_actor(queue, handle))


def _actor(queue: str, handle: Callable[[Reference], str]) -> Callable[[str, str, int], None]:
    def deliver(job_id: str, tenant_id: str, generation: int) -> None:
        handle(Reference(UUID(job_id), queue, UUID(tenant_id), generation))

    return deliver


class Lifecycle(dramatiq.Middleware):
    """Our only middleware: what a worker process does in the background starts and ends with it, by whichever command line."""

    def __init__(self, start: Callable[[], None], drain: Callable[[], None], stop: Callable[[], None]) -> None:
        self._start, self._drain, self._stop = start, drain, stop

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        del broker, worker
        self._start()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        """A process that has been told to stop takes nothing more: it would hold it for as long as its last call lasts."""
        del worker
        assert isinstance(broker, NotifBroker)
        broker.draining = True
        self._drain()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        del broker, worker
        self._stop()
