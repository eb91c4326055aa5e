"""Dramatiq as carrier: its worker threads, acks and command line; our consumer, our middleware, no delay ever.

Dramatiq's own consumer knows no ids of what it fetched: one body that is no message strands its neighbours. Ours fetches pairs.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.errors import ConnectionClosed
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from notif.adapters.death_watch import DeathWatch
from notif.adapters.redis_carrier import NAMESPACE, Acks, answering, client, decode, named
from notif.errors import Unavailable
from notif.ports import Log, PoisonPort, Reference

BELL_WAIT = 1.0
"""Seconds an idle consumer waits for a push, in one blocking command; below the client's socket timeout."""
FULL_WAIT = 0.002
"""Seconds until a full consumer looks whether a thread has freed a place."""
SICK_WAIT = 0.2
"""Seconds between looks whether Postgres answers again; nothing is fetched meanwhile."""


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
        # Workers are patient: what they hold is worth waiting for.
        super().__init__(  # type: ignore[no-untyped-call]
            client=client(url, retries=30, timeout=5.0),
            middleware=list(middleware),
            namespace=NAMESPACE,
        )
        self.consumers, self.poison, self.healthy, self.log = consumers, poison, healthy, log
        self.draining = False
        self.deaf = False  # Redis has let us wait in vain since we drain
        self.acks = Acks(self.client, self.broker_id)
        self.held: dict[str, set[bytes]] = {}
        self._strange: dict[str, set[bytes]] = {}

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.held[queue_name] = set()
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        del message, delay
        raise TypeError("only the relay puts references on queues: publish through the QueuePort")

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        del timeout  # an idle consumer waits for the bell
        return ReferenceConsumer(self, queue_name, prefetch)

    def close(self) -> None:
        self.client.close()

    def hurry(self) -> None:
        """The process ends: nothing more is fetched, and Redis is asked once. What it doesn't hear, reaper and timers mend."""
        self.draining = True
        patience = self.client.get_retry()
        assert patience
        patience.update_retries(0)

    def reap(self) -> None:
        """Say that this process lives; give back what silent ones held, and what this one never heard of. Raises Unavailable.

        A fetch whose answer was lost leaves references to a process that doesn't know them. One seen so twice is given back.
        """
        with answering():
            self.acks.reap(sorted(self.queues))
            self.deaf = False
            for queue in sorted(self.queues):
                self._reap_own(queue)

    def _reap_own(self, queue: str) -> None:
        unknown = self.acks.held(queue) - self.held[queue]
        forgotten = unknown & self._strange.get(queue, set())
        self._strange[queue] = unknown - forgotten
        if forgotten:
            self.acks.give_back(queue, sorted(forgotten))
            self.log.warning("references of a lost fetch went back", queue=queue, count=len(forgotten))


class ReferenceConsumer(dramatiq.Consumer):
    """One queue of one process. What is no reference becomes a dead letter and leaves Redis; its neighbours notice nothing."""

    def __init__(self, broker: NotifBroker, queue: str, prefetch: int) -> None:
        self._broker, self._queue, self._prefetch = broker, queue, prefetch
        self._fetched: list[tuple[bytes, bytes]] = []
        self._held = broker.held[queue]  # of the process: it outlives this consumer, as what it fetched does

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
        room = self._prefetch - len(self._held)
        if room <= 0:
            time.sleep(FULL_WAIT)
            return
        found = self._broker.acks.fetch(self._queue, room)
        self._fetched = found
        self._held.update(identifier for identifier, _ in found)
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
            self._ask(lambda: self._broker.acks.ack(self._queue, identifier))
        except RedisError as error:  # Dramatiq knows ConnectionError only, and would never ack after a time-out
            if not self._broker.draining:  # else it would be tried again for longer than the process may take to end
                raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
            self._broker.log.warning("reference not acked", queue=self._queue, error=str(error))
        self._held.discard(identifier)

    def _give_back(self, identifiers: list[bytes]) -> None:
        if not identifiers:
            return
        try:
            self._ask(lambda: self._broker.acks.give_back(self._queue, identifiers))
        except RedisError as error:
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
        self._held.difference_update(identifiers)

    def _ask(self, ask: Callable[[], None]) -> None:
        """A process that drains waits once for a Redis that doesn't answer, not once for each queue and each reference."""
        if self._broker.deaf:
            raise RedisTimeoutError("it has not answered since this process was told to stop")
        try:
            ask()
        except RedisTimeoutError:
            self._broker.deaf = self._broker.draining
            raise


def declare(broker: NotifBroker, handlers: Mapping[str, Callable[[Reference], str]]) -> None:
    """One actor per queue, all from this one loop."""
    for queue, handle in handlers.items():
        dramatiq.actor(actor_name=queue, queue_name=queue, broker=broker)(_actor(queue, handle))


def _actor(queue: str, handle: Callable[[Reference], str]) -> Callable[[str, str, int], None]:
    def deliver(job_id: str, tenant_id: str, generation: int) -> None:
        handle(Reference(UUID(job_id), queue, UUID(tenant_id), generation))

    return deliver


class Process(Protocol):
    """What a worker process does beside its worker threads."""

    def boot(self) -> None:
        """Before anything starts; may end the process."""
        ...

    def start(self) -> Sequence[threading.Thread]:
        """Answers the threads without which the process is of no use."""
        ...

    def drain(self) -> None: ...

    def stop(self) -> None: ...


class Lifecycle(dramatiq.Middleware):
    """Our only middleware: what a worker process does in the background starts and ends with it, by whichever command line."""

    def __init__(self, process: Process, *, drain_seconds: float, log: Log) -> None:
        self._process, self._drain_seconds, self._log = process, drain_seconds, log
        self._watch: DeathWatch | None = None

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        del broker, worker
        self._process.boot()

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        del broker
        others = self._process.start()

        def threads() -> dict[str, threading.Thread]:
            found: dict[str, threading.Thread] = {thread.name: thread for thread in others}
            found |= {f"worker {number}": thread for number, thread in enumerate(worker.workers)}
            return found | {f"consumer of {queue}": thread for queue, thread in worker.consumers.items()}

        def stop() -> None:
            worker.stop(timeout=int(self._drain_seconds * 1000))

        self._watch = DeathWatch(threads, stop, drain=self._drain_seconds, log=self._log)
        self._watch.start()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        """A process that has been told to stop takes nothing more: it would hold it for as long as its last call lasts."""
        del worker
        assert isinstance(broker, NotifBroker)
        broker.hurry()
        if self._watch:
            self._watch.stop()
        self._process.drain()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        del broker, worker
        self._process.stop()
