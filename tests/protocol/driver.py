"""One schedule of `model.py`, driven over the real tables and a real Redis; `real.py` says how the two differ."""

from collections.abc import Sequence
from contextlib import suppress

from notif.adapters.postgres.relay import PICK
from notif.adapters.redis_carrier import decode
from notif.ports import Reference, Turn
from tests.protocol.checker import Checker
from tests.protocol.hands import Worker, address
from tests.protocol.model import Dice, Event, Settings, Violation
from tests.protocol.office import PostOffice
from tests.protocol.people import People
from tests.protocol.relays import RelayHand
from tests.protocol.stage import QUEUES, Address, Stage
from tests.protocol.world import JOBS, KINDS, Audience, job_id, recipient

ROUNDS = 400
"""Of everybody stepping once, until nothing is left to do: the longest seen took 90."""
OFFSETS = (0, -7_000, 40, 7_000)
"""Seconds a worker's clock is away from Postgres'."""


class RealModel:
    """One schedule on one stage."""

    def __init__(self, stage: Stage, settings: Settings, seed: int, trace: list[str] | None = None) -> None:
        self.stage, self.settings, self.trace = stage, settings, trace
        stage.clock.now = 0.0
        stage.reset()
        self.dice = Dice(seed * 2 + 1)
        self.kinds = {number: KINDS[self.dice.pick(list(KINDS))] for number in range(1, JOBS + 1)}
        self.checker = Checker(stage, settings.keyed, trace)
        self.checker.last = stage.last_delivery()
        self.post_office = PostOffice(self)
        self.audience = Audience()
        self.carrier = stage.nameless if self.broken("redis_id_without_generation") else stage.carrier
        self.people = People(self.checker, self.kinds, self.audience)
        self.redis_down_until = 0.0
        self.redis_touched = True
        """Something happened to Redis that no relay has looked at yet."""
        self.filled: set[str] = set()
        """Queues that may hold something on Redis: the others are not asked."""
        self.backup = stage.copied()
        self._processes = 0
        self.outage = "provider" in settings.faults and self.dice.chance(0.15)
        self.workers = [Worker(self, number, self.dice.pick(OFFSETS)) for number in range(len(stage.brokers))]
        self.relays = [RelayHand(self, 0), RelayHand(self, 1)]

    # ---- shorthand
    @property
    def now(self) -> float:
        return self.stage.clock.now

    def next_process(self) -> int:
        self._processes += 1
        return self._processes

    def broken(self, name: str) -> bool:
        return self.settings.mutation == name

    def amended(self, name: str) -> bool:
        return name in self.settings.amendments

    def fault(self, name: str, probability: float) -> bool:
        return not self.checker.quiet and name in self.settings.faults and self.dice.chance(probability)

    def say(self, text: str) -> None:
        self.checker.say(text)

    def redis_answers(self) -> bool:
        return self.now >= self.redis_down_until

    def kills_its_worker(self, address: Address) -> bool:
        """Two jobs of an outage kill whoever handles them, every time."""
        return self.checker.quiet and self.outage and address[0] in (str(job_id(1)), str(job_id(2)))

    def relay_is_needed(self) -> bool:
        return self.redis_touched or any(row.due_at <= self.now for row in self.checker.seen.rows.values())

    def check_references(self, refs: Sequence[Reference]) -> None:
        for ref in refs:
            self.checker.judge_reference(address(ref), ref.generation)

    def would_pick(self, turns: Sequence[Turn]) -> list[Reference]:
        """What a pick would raise, without its commit: for the relay that pushes too early."""
        turn = [
            [t.terms.queue, t.terms.provider, t.terms.key_lifetime is not None, 5, t.window, t.after, None]
            for t in turns
        ]
        with suppress(_TakenBack), self.stage.maintenance.transaction() as connection:
            found = connection.exec_driver_sql(PICK, tuple(map(list, zip(*turn, strict=True)))).fetchall()
            refs = [
                Reference(row[0], row[1], row[2], row[3]) for row in found if row[0] is not None and row[3] is not None
            ]
            raise _TakenBack
        return refs

    # ---- workers and relays
    def step_worker(self, worker: Worker) -> bool:
        """One step; answers whether anything happened."""
        if worker.frozen_until > self.now:
            return False
        if worker.actor.at:
            worker.actor.step()
            return True
        if worker.ref:
            return self.ack(worker)
        return self.fetch(worker)

    def fetch(self, worker: Worker) -> bool:
        if not self.redis_answers() or not self.filled:
            return False
        queue = self.dice.pick(sorted(self.filled))
        found = worker.broker.acks.fetch(queue, 1)
        if not found:
            self.filled.discard(queue)
            return False
        ((identifier, body),) = found
        if self.fault("lost_fetch", 0.04):
            self.say(f"worker {worker.number}: the reply to its fetch is lost")
            return True
        if self.broken("redis_id_without_generation"):
            ref = self.stage.nameless.decode(queue, body)
        else:
            ref = decode(queue, identifier, body)
        self.say(f"worker {worker.number} fetches {self.checker.name(address(ref))}:{ref.generation}")
        worker.take(identifier, ref)
        return True

    def ack(self, worker: Worker) -> bool:
        if not self.redis_answers():
            return False
        assert worker.ref
        worker.broker.acks.ack(worker.ref.queue, worker.message)
        worker.ref, worker.claim = None, 0
        return True

    def reap(self, worker: Worker) -> None:
        self.stage.reap(worker.broker)
        self.filled = set(QUEUES)

    def kill(self, worker: Worker, gives_back: bool) -> None:
        """The process ends. Gives back, as at SIGTERM, what it has not claimed; else the reaper does it for all it had."""
        started, ref = bool(worker.claim), worker.ref
        worker.actor.kill()
        if gives_back and ref and not started and self.redis_answers():
            worker.broker.acks.give_back(ref.queue, [worker.message])
        self.reap(worker)
        self.say(f"worker {worker.number} is killed; what it held goes back")
        self.workers[worker.number] = Worker(self, worker.number, worker.clock_offset)

    # ---- driving
    def step(self, event: Event) -> None:
        self.stage.clock.now += event.gap
        self.dice = Dice(event.seed)
        self.post_office.deliver_late()
        worker = self.workers[event.who % len(self.workers)]
        match event.kind:
            case "worker":
                for _ in range(self.dice.pick((1, 1, 2, 3, 6, 8))):
                    self.step_worker(worker)
            case "relay":
                for _ in range(self.dice.pick((1, 2, 2))):
                    self.relays[event.who % 2].step()
            case "renew":
                if worker.frozen_until <= self.now:
                    worker.leases.renew()
            case "publish" | "cancel" | "suppress" | "pause" | "resume" | "replay" | "discard" | "clean_fences":
                self.act(event.kind, 1 + event.who % JOBS)
            case _:
                self.strike(event, worker)

    def act(self, kind: str, number: int) -> None:
        """The product, or a person, with the job of this number."""
        people, dice, seen = self.people, self.dice, self.checker.seen
        closed, waiting = [closing.domain for closing in seen.closings], list(seen.letters)
        match kind:
            case "publish":
                people.publish(number, int(dice.chance(0.2)), dice.pick((0, 0, 0, 20, 9 * 86_400)))
            case "cancel":
                people.cancel(number)
            case "suppress":
                self.audience.left.add(recipient(number))
            case "pause":
                people.halt(dice.pick(("", f"{self.kinds[number].name}.test")))
            case "resume" if closed:
                people.resume(dice.pick(closed))
            case "replay" if waiting:
                people.replay(dice.pick(waiting), dice.chance(0.7))
            case "discard" if waiting:
                people.discard(dice.pick(waiting))
            case "clean_fences":
                people.clean()

    def strike(self, event: Event, worker: Worker) -> None:
        """A fault."""
        match event.kind:
            case "kill":
                self.kill(worker, self.dice.chance(0.3))
            case "freeze":
                worker.frozen_until = max(
                    worker.frozen_until, self.now + self.dice.pick((5, 15, 30, 120, 3_600, 90_000))
                )
                self.say(
                    f"worker {worker.number} (at {worker.actor.at or 'rest'}) is frozen until {worker.frozen_until:.0f}"
                )
            case "wipe":
                self.stage.redis.flushdb()
                self.redis_touched = True
                self.say("Redis is wiped")
            case "backup":
                self.backup = self.stage.copied()
            case "restore":
                self.stage.restore(self.backup)
                self.redis_touched, self.filled = True, set(QUEUES)
                self.say("Redis is restored from an old copy")
            case "reap":
                self.reap(worker)
                self.say(f"living worker {worker.number} is reaped")
            case "relay_crash":
                self.relays[event.who % 2].actor.kill()
                self.relays[event.who % 2] = RelayHand(self, event.who % 2)
                self.say(f"relay {event.who % 2} crashes")
            case "redis_stall":
                self.redis_down_until = self.now + self.dice.pick((2, 10, 60))
                self.say("Redis does not answer")

    def drain(self) -> None:
        """Faults stop, closings are resumed: everything must end in bounded time, with a bounded number of pushes."""
        self.checker.quiet = True
        self.say("---- faults stop, halts are resumed")
        self.redis_down_until = 0
        for worker in self.workers:
            worker.frozen_until = 0
        self.dice = Dice(7)
        self.resume_all()
        limit, rounds = max([self.now, *self.timers()]) + 7_200, 0
        while self.busy():
            before = self.checker.moves
            stepped = [self.step_worker(worker) for worker in self.workers]
            for relay in self.relays:
                relay.step()
            for worker in self.workers:
                worker.leases.renew()
            gap = 0.0
            if not any(stepped) and before == self.checker.moves and not any(relay.actor.at for relay in self.relays):
                self.resume_all()  # at once, and again: an answer still on its way may halt anew
                if any(row.state == "halted" for row in self.checker.seen.rows.values()):
                    self.people.clean()
                gap = max(1, min([x for x in self.timers() if x > self.now], default=self.now + 1) - self.now)
            self.stage.clock.now += gap
            self.post_office.deliver_late()
            rounds += 1
            if self.now > limit or rounds > ROUNDS:
                raise Violation("does not drain", self.checker.must_drain())

    def resume_all(self) -> None:
        for closing in self.checker.seen.closings:
            if closing.until == float("inf"):
                self.people.resume(closing.domain)

    def timers(self) -> list[float]:
        """When anything comes due by itself."""
        found = [row.due_at for row in self.checker.seen.rows.values()] + [x[0] for x in self.post_office.late]
        found += [x for closing in self.checker.seen.closings for x in (closing.until, closing.transactional_until)]
        return [x for x in found if x < float("inf")]

    def busy(self) -> bool:
        if self.checker.seen.rows or self.post_office.late or any(relay.actor.at for relay in self.relays):
            return True
        if any(worker.ref for worker in self.workers):
            return True
        return bool(self.filled)

    def close(self) -> None:
        """End what still stands at a point."""
        for actor in [hand.actor for hand in self.workers] + [hand.actor for hand in self.relays]:
            with suppress(Violation):
                actor.kill()


class _TakenBack(Exception):
    """Rolls a transaction back."""
