"""A relay process of the schedules: the real relay, behind ports that stop and that fail."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from notif.adapters.postgres.relay import PostgresOutbox
from notif.errors import Unavailable
from notif.ports import CarrierPort, OutboxPort, Picked, Reference, Turn
from notif.relay import Relay, Route
from tests.protocol.actors import Actor
from tests.protocol.doubles import Quiet
from tests.protocol.hands import address, terms
from tests.protocol.memory import By
from tests.protocol.stage import MAIL_QUEUES, QUEUES

if TYPE_CHECKING:
    from tests.protocol.driver import RealModel


class SteppedOutbox:
    """OutboxPort with a stop before the pick."""

    def __init__(self, hand: "RelayHand") -> None:
        self._hand, self._model = hand, hand.model
        self._real: OutboxPort = PostgresOutbox(hand.model.stage.maintenance)

    def pick(self, turns: Sequence[Turn]) -> Picked:
        self._hand.actor.point("pick")
        if self._model.broken("push_before_commit"):
            early = self._model.would_pick(turns)
            if early:
                self._model.check_references(early)
                self._model.carrier.push(early)
                self._hand.actor.point("commit")
        picked = self._real.pick(turns)
        self._model.checker.observe(By("pick"))
        return picked

    def requeue(self, queues: Sequence[str]) -> int:
        due = self._real.requeue(queues)
        self._model.checker.observe(By("requeue"))
        return due

    def sweep(self, queue: str) -> datetime:
        return self._real.sweep(queue)


class SteppedCarrier:
    """CarrierPort with a stop before the push, which may fail before or after it was done."""

    def __init__(self, hand: "RelayHand") -> None:
        self._hand, self._model = hand, hand.model
        self._real: CarrierPort = hand.model.carrier

    def push(self, refs: Sequence[Reference]) -> bool:
        hand, model = self._hand, self._model
        hand.actor.point("push")
        if not model.redis_answers() or model.fault("lost_push", 0.04):
            model.say(f"relay {hand.number} cannot push")
            model.redis_touched = True
            raise Unavailable("Redis does not answer")
        model.check_references(refs)
        intact = self._real.push(refs)
        model.filled.update(ref.queue for ref in refs)
        model.say(
            f"relay {hand.number} pushes {', '.join(f'{model.checker.name(address(r))}:{r.generation}' for r in refs)}"
        )
        if model.fault("lost_push", 0.04):
            model.say(f"relay {hand.number} gets no answer to its push")
            model.redis_touched = True
            raise Unavailable("no answer")
        return intact

    def alive(self) -> bool:
        if not self._model.redis_answers():
            self._model.redis_touched = True
            raise Unavailable("Redis does not answer")
        return self._real.alive()


class RelayHand:
    """One relay process over all queues."""

    def __init__(self, model: "RealModel", number: int) -> None:
        self.model, self.number, self.actor = model, number, Actor()
        routes = [Route(terms(queue, model.settings.keyed), 8.0 if queue in MAIL_QUEUES else None) for queue in QUEUES]
        self._relay = Relay(
            SteppedOutbox(self), SteppedCarrier(self), routes, all_queues=QUEUES, log=Quiet(), clock=lambda: model.now
        )

    def step(self) -> None:
        if not self.actor.at:
            if not self.model.relay_is_needed():  # an idle poll costs most of a run's time
                return
            self.model.redis_touched = False
            self.actor.begin(self._relay.poll)
        if self.actor.at:
            self.actor.step()
