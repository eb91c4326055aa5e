"""One schedule of `model.py`, driven over the real tables and a real Redis; `real.py` says how the two differ."""

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from notif.adapters.postgres.operations import PostgresLetters, PostgresUpkeep
from notif.adapters.postgres.publisher import OutboxPublisher
from notif.adapters.postgres.relay import PICK, PostgresClosings
from notif.adapters.redis_carrier import NAMESPACE, decode
from notif.closings import halt
from notif.envelope import MAX_BYTES
from notif.errors import JobConflict, Refused
from notif.ports import Reference, Turn
from notif.publishing import Checker as PublishChecker
from tests.protocol.checker import By, Checker
from tests.protocol.hands import RelayHand, Worker, address
from tests.protocol.model import Dice, Event, Settings, Violation
from tests.protocol.office import PostOffice
from tests.protocol.stage import CONSUMERS, MAIL_QUEUES, QUEUES, Address, Stage
from tests.protocol.world import JOBS, KINDS, PROVIDER, Audience, envelope, job_id, kinds, recipient

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
        self.publisher = OutboxPublisher(
            stage.publisher, PublishChecker(kinds(), self.audience, CONSUMERS, MAX_BYTES, stage.clock.moment)
        )
        self.letters, self.upkeep = PostgresLetters(stage.maintenance), PostgresUpkeep(stage.maintenance)
        self.closings = PostgresClosings(stage.worker)
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
            refs = [Reference(row[0], row[1], row[2], row[3]) for row in found if row[0] is not None]
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
        found = worker.broker.fetch(keys=[NAMESPACE], args=[self.stage.millis(), queue, worker.broker.broker_id, 1])
        if not found:
            self.filled.discard(queue)
            return False
        identifier, body = found
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
        worker.broker.do_ack(worker.ref.queue, worker.message)
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
            worker.broker.do_requeue(ref.queue, worker.message)
        self.reap(worker)
        self.say(f"worker {worker.number} is killed; what it held goes back")
        self.workers[worker.number] = Worker(self, worker.number, worker.clock_offset)

    # ---- what the product and people do
    def publish(self, number: int, content: int, delay: float) -> None:
        kind = self.kinds[number]
        run_at = self.stage.clock.moment_in(delay) if delay else None
        try:
            self.publisher.publish(kind.all_queues, envelope(number, kind, content), run_at=run_at)
        except JobConflict:
            self.say(f"publish job{number} again: refused, other content")
        self.checker.observe(By("publish"))

    def cancel(self, number: int) -> None:
        job, before = str(job_id(number)), self.checker.seen.rows
        answers = self.publisher.cancel(UUID(job))
        self.checker.observe(By("cancel"))
        self.say(f"cancel job{number}: {answers}")
        for queue in [queue for name, queue in before if name == job]:
            if answers.get(queue) is not ((job, queue) not in self.checker.seen.rows):
                raise Violation("cancel answers what it did not do", f"job{number}: {answers}")

    def replay(self, letter: int, accept: bool) -> None:
        seen = self.checker.seen.letters[letter]
        lifetime = self.workers[0].consumers[seen.address[1]].terms.key_lifetime
        allowed = accept or self.checker.repeatable(seen.key_since, seen.resend)
        try:
            self.letters.replay(letter, lifetime, accept=accept, who="test")
        except Refused as refused:
            self.say(f"replay of {self.checker.name(seen.address)}: {refused}")
            if allowed and seen.address not in self.checker.seen.rows:
                raise Violation("replay refused without a reason", self.checker.name(seen.address)) from None
        self.checker.observe(By("replay", accept=accept))

    def discard(self, letter: int) -> None:
        self.letters.discard(letter, reason="test", who="test")
        self.say(f"letter {letter} discarded")
        self.checker.observe(By("discard"))

    def clean(self) -> None:
        self.upkeep.clean_fences(1000)
        self.upkeep.clean_deliveries(1000)
        self.upkeep.wake_halted(PROVIDER, MAIL_QUEUES)
        self.checker.observe(By("wake"))

    def halt(self) -> None:
        number = 1 + int(self.dice.number() * JOBS)
        domain = self.dice.pick(("", f"{self.kinds[number].name}.test"))
        self.closings.close(halt(PROVIDER, domain, "test"))
        self.say(f"the provider is halted{' for ' + domain if domain else ''}")
        self.checker.observe(By("close"))

    def resume(self, domain: str) -> None:
        if self.upkeep.resume(PROVIDER, domain, MAIL_QUEUES, "test"):
            self.say(f"the provider is resumed{' for ' + domain if domain else ''}")
        self.checker.observe(By("resume"))

    # ---- driving
    def step(self, event: Event) -> None:
        self.stage.clock.now += event.gap
        self.dice = Dice(event.seed)
        self.post_office.deliver_late()
        worker = self.workers[event.who % len(self.workers)]
        number = 1 + event.who % JOBS
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
            case "publish":
                self.publish(number, int(self.dice.chance(0.2)), self.dice.pick((0, 0, 0, 20, 9 * 86_400)))
            case "cancel":
                self.cancel(number)
            case "pause":
                self.halt()
            case "suppress":
                self.audience.left.add(recipient(number))
            case "resume":
                closed = [closing[0] for closing in self.checker.seen.closings]
                if closed:
                    self.resume(self.dice.pick(closed))
            case "replay" | "discard":
                waiting = list(self.checker.seen.letters)
                if waiting and event.kind == "replay":
                    self.replay(self.dice.pick(waiting), self.dice.chance(0.7))
                elif waiting:
                    self.discard(self.dice.pick(waiting))
            case "clean_fences":
                self.clean()
            case _:
                self.strike(event, worker)

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
        for domain, _, until, _ in self.checker.seen.closings:
            if until == float("inf"):
                self.resume(domain)
        self.redis_down_until = 0
        for worker in self.workers:
            worker.frozen_until = 0
        self.dice = Dice(7)
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
                if any(row.state == "halted" for row in self.checker.seen.rows.values()):
                    self.clean()
                gap = max(1, min([x for x in self.timers() if x > self.now], default=self.now + 1) - self.now)
            self.stage.clock.now += gap
            self.post_office.deliver_late()
            rounds += 1
            if self.now > limit or rounds > 3_000:
                raise Violation("does not drain", self.checker.must_drain())

    def timers(self) -> list[float]:
        """When anything comes due by itself."""
        found = [row.due_at for row in self.checker.seen.rows.values()] + [x[0] for x in self.post_office.late]
        found += [until for closing in self.checker.seen.closings for until in closing[2:]]
        return [x for x in found if x < float("inf")]

    def busy(self) -> bool:
        if self.checker.seen.rows or self.post_office.late or any(relay.actor.at for relay in self.relays):
            return True
        if any(worker.ref for worker in self.workers):
            return True
        return bool(self.filled)

    def close(self) -> None:
        """End what still stands at a point."""
        for hand in (*self.workers, *self.relays):
            with suppress(Violation):
                hand.actor.kill()


class _TakenBack(Exception):
    """Rolls a transaction back."""
