"""What the product does (publish, cancel) and what a person does (replay, discard, halt, resume), through the real adapters."""

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from notif.adapters.postgres.operations import PostgresLetters, PostgresUpkeep
from notif.adapters.postgres.publisher import OutboxPublisher
from notif.adapters.postgres.relay import PostgresClosings
from notif.closings import halt
from notif.envelope import MAX_BYTES
from notif.errors import JobConflict, Refused
from notif.kinds import Kind
from notif.publishing import Checker as PublishChecker
from tests.protocol.checker import Checker
from tests.protocol.memory import By
from tests.protocol.model import KEY_LIFETIME, Violation
from tests.protocol.stage import CONSUMERS, MAIL_QUEUES
from tests.protocol.world import PROVIDER, Audience, envelope, job_id, kinds


class People:
    """`jobs`: number → the job's kind. After each act the checker looks at the tables."""

    def __init__(self, checker: Checker, jobs: Mapping[int, Kind], audience: Audience) -> None:
        self.checker, self.stage, self.kinds = checker, checker.stage, jobs
        stage = self.stage
        self.publisher = OutboxPublisher(
            stage.publisher, PublishChecker(kinds(), audience, CONSUMERS, MAX_BYTES, stage.clock.moment)
        )
        self.letters, self.upkeep = PostgresLetters(stage.maintenance), PostgresUpkeep(stage.maintenance)
        self.closings = PostgresClosings(stage.worker)
        self.say = checker.say

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
        keyed = self.checker.keyed and seen.address[1] in MAIL_QUEUES
        lifetime = timedelta(seconds=KEY_LIFETIME) if keyed else None
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

    def halt(self, domain: str) -> None:
        self.closings.close(halt(PROVIDER, domain, "test"))
        self.say(f"the provider is halted{' for ' + domain if domain else ''}")
        self.checker.observe(By("close"))

    def resume(self, domain: str) -> None:
        if self.upkeep.resume(PROVIDER, domain, MAIL_QUEUES, "test"):
            self.say(f"the provider is resumed{' for ' + domain if domain else ''}")
        self.checker.observe(By("resume"))
