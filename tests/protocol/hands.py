"""A worker process of the schedules: the real consumers, behind ports that stop and that fail."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import text

from notif.adapters.postgres.ledger import PostgresLedger
from notif.adapters.postgres.relay import PostgresCircuits, PostgresClosings
from notif.circuit import Circuit
from notif.closings import Closings
from notif.consume import Consumer, Desk
from notif.deliver import Channel, Deliverer
from notif.envelope import Envelope
from notif.errors import Unavailable
from notif.handlers import HandlerConsumer
from notif.leases import Leases
from notif.ports import (
    Claimed,
    Closing,
    Gated,
    Held,
    LedgerPort,
    PoisonedRow,
    Reference,
    Settlement,
    Stop,
    Terms,
)
from notif.retry import RetryPolicy
from notif.verdict import Answer, Delivered, Verdict
from tests.protocol.actors import Actor, Killed
from tests.protocol.doubles import NoPoison, Quiet
from tests.protocol.memory import By
from tests.protocol.model import ATTEMPTS, DEADLINE, KEY_LIFETIME, LEASE
from tests.protocol.stage import CONSUMERS, LEDGER, MAIL_QUEUES, Address
from tests.protocol.world import PROVIDER, frozen, kinds

if TYPE_CHECKING:
    from tests.protocol.driver import RealModel


def terms(queue: str, keyed: bool) -> Terms:
    provider = PROVIDER if queue in MAIL_QUEUES else None
    lifetime = timedelta(seconds=KEY_LIFETIME) if keyed and provider else None
    return Terms(queue, CONSUMERS[queue], provider, lifetime, timedelta(seconds=LEASE), ATTEMPTS)


def address(ref: Reference) -> Address:
    return str(ref.job_id), ref.queue


class SteppedLedger:
    """LedgerPort: the real one, with a stop before each call, an answer that may be lost, and a look at the tables after it."""

    def __init__(self, worker: "Worker") -> None:
        self._worker, self._model = worker, worker.model
        self._real: LedgerPort = PostgresLedger(worker.model.stage.worker)

    def _done(self, op: str, generation: int, losing: float) -> None:
        worker, model = self._worker, self._model
        model.checker.observe(By(op, worker.address, generation, worker.stay, worker.used))
        if losing and model.fault("lost_reply", losing):
            model.say(f"worker {worker.number}: the answer of its {op} is lost")
            raise Unavailable(f"{op}: no answer")

    def gate(self, ref: Reference, terms: Terms) -> Gated | PoisonedRow | Stop:
        self._worker.actor.point("gate")
        found = self._real.gate(ref, terms)
        self._done("gate", ref.generation, 0)
        return found

    def claim(self, ref: Reference, terms: Terms, request: bytes | None) -> Claimed | Stop:
        worker = self._worker
        worker.actor.point("claim")
        claimed = self._real.claim(ref, terms, request)
        worker.used = False
        self._done("claim", ref.generation, 0.03)
        if isinstance(claimed, Claimed):
            worker.generation, worker.claim = claimed.generation, self._model.checker.claims
            worker.probe = claimed.probe
        return claimed

    def freeze(self, ref: Reference, generation: int, request: bytes) -> bool:
        self._worker.actor.point("freeze")
        done = self._real.freeze(ref, generation, request)
        self._done("freeze", generation, 0.03)
        return done

    def settle(self, ref: Reference, generation: int, terms: Terms, settlement: Settlement) -> str:
        self._worker.actor.point("settle")
        state = self._real.settle(ref, generation, terms, settlement)
        self._done("settle", generation, 0.05)
        return state

    def renew(self, claims: Sequence[Held], lease: timedelta) -> set[tuple[UUID, str, int]]:
        renewed = self._real.renew(claims, lease)
        self._done("renew", self._worker.generation, 0)
        return renewed

    def work(self, ref: Reference, generation: int, terms: Terms, work: Callable[[Any], Settlement]) -> str:
        self._worker.actor.point("work")
        state = self._real.work(ref, generation, terms, work)
        self._done("work", generation, 0.05)
        return state


class SteppedClosings(Closings):
    """The worker's memory, with a stop before each look: at the permit, and the last one before the call."""

    def __init__(self, worker: "Worker") -> None:
        super().__init__(WatchedClosings(worker), worker.clock)
        self._worker = worker

    def against(self, provider: str, queue: str, domain: str, probe: bool = False) -> Stop | None:
        worker = self._worker
        worker.actor.point("look" if worker.claim else "permit")
        if worker.claim and (
            worker.model.broken("no_check_after_permit") or not worker.model.amended("check_before_call")
        ):
            return None
        return super().against(provider, queue, domain, probe)


class WatchedClosings:
    """ClosingsPort."""

    def __init__(self, worker: "Worker") -> None:
        self._model = worker.model
        self._real = PostgresClosings(worker.model.stage.worker)

    def read(self) -> list[Closing]:
        return self._real.read()

    def close(self, closing: Closing) -> None:
        self._real.close(closing)
        self._model.say(f"{closing.state} {closing.domain or 'for all'}: {closing.seconds} s")
        self._model.checker.observe(By("close"))


class SteppedLeases(Leases):
    """The real one; broken on purpose where the schedule says so."""

    def __init__(self, worker: "Worker", ledger: LedgerPort) -> None:
        super().__init__(ledger, timedelta(seconds=LEASE), worker.clock)
        self._worker = worker

    def left(self, ref: Reference, generation: int) -> float:
        model = self._worker.model
        if model.broken("call_without_lease_check"):
            return float("inf")
        row = model.checker.seen.rows.get(address(ref))
        if row and model.broken("lease_by_wall_clock"):
            return row.due_at - (model.now + self._worker.clock_offset)
        return super().left(ref, generation)


class Post:
    """ProviderPort of one worker: the model's provider, over the real bytes and the real keys."""

    name = PROVIDER

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self.key_lifetime = timedelta(seconds=KEY_LIFETIME) if worker.model.settings.keyed else None

    def build(self, message: BaseModel, job_id: UUID) -> bytes:
        return frozen(message, job_id)

    def close(self) -> None:
        pass

    def recipients(self, request: bytes) -> tuple[str, ...]:
        return tuple(json.loads(request)["to"])

    def send(self, request: bytes, key: str, deadline: float) -> Answer:
        worker, model = self._worker, self._worker.model
        model.checker.judge_call(worker.address, worker.claim)
        model.say(
            f"worker {worker.number} calls the provider for {model.checker.name(worker.address)}, key {key[-20:]}"
        )
        started = model.now
        answer = model.post_office.answer(worker.address, request, key)
        if model.kills_its_worker(worker.address):
            raise Killed
        worker.actor.point("answer")
        return model.post_office.spoken(worker, answer, model.now - started > DEADLINE)


@dataclass(eq=False)
class Worker:
    """One process, one thread. What is below `frozen_until` belongs to the reference it has in hand."""

    model: "RealModel"
    number: int
    clock_offset: int
    frozen_until: float = 0
    ref: Reference | None = None
    message: bytes = b""
    stay: int = 0
    generation: int = 0
    claim: int = 0
    used: bool = False
    probe: bool = False

    def __post_init__(self) -> None:
        self.actor = Actor()
        self.broker = self.model.stage.brokers[self.number]
        self.broker.broker_id = f"worker{self.number}.{self.model.next_process()}"
        ledger = SteppedLedger(self)
        self.leases = SteppedLeases(self, ledger)
        desk = Desk(
            ledger=ledger,
            poison=NoPoison(),
            kinds=kinds(),
            leases=self.leases,
            log=Quiet(),
            stopping=lambda: False,
            chance=self._chance,
            sleep=lambda _: self.actor.point("again"),
        )
        closings = SteppedClosings(self)
        # Circuits are not modelled: none opens. The probes of halts are.
        circuit = Circuit(PostgresCircuits(self.model.stage.worker), closings, Quiet(), failures=1_000_000)
        channel = Channel(Post(self), self.model.audience, closings, DEADLINE, self._moment, circuit)
        self.consumers: dict[str, Consumer] = {
            queue: Deliverer(desk, terms(queue, self.model.settings.keyed), RetryPolicy(), channel)
            for queue in MAIL_QUEUES
        }
        self.consumers[LEDGER] = HandlerConsumer(desk, terms(LEDGER, False), RetryPolicy(), self._book)

    @property
    def address(self) -> Address:
        return address(self.ref) if self.ref else ("", "")

    def clock(self) -> float:
        """Its own, hours apart from Postgres'."""
        return self.model.now + self.clock_offset

    def take(self, message: bytes, ref: Reference) -> None:
        self.message, self.ref = message, ref
        self.generation, self.claim, self.used, self.probe = ref.generation, 0, False, False
        self.stay = self.model.checker.pushed.get((address(ref), ref.generation), 0)
        self.actor.begin(lambda: self.consumers[ref.queue].handle(ref))

    def _chance(self) -> float:
        return self.model.dice.number()

    def _moment(self) -> datetime:
        return self.model.stage.clock.moment()

    def _book(self, session: Any, envelope: Envelope) -> Verdict:
        """The product's handler: writes a row of its own, and sometimes fails afterwards."""
        session.execute(
            text("INSERT INTO public.booked VALUES (:job, :queue)"), {"job": envelope.job_id, "queue": LEDGER}
        )
        if self.model.kills_its_worker((str(envelope.job_id), LEDGER)):
            raise Killed
        if self.model.fault("provider", 0.2):
            self.used = True
            raise RuntimeError("the product's own trouble")
        return Delivered()
