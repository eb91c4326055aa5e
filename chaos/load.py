"""The load: product code that publishes, cancels and decides on dead letters, whatever goes wrong, and keeps its own books."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from chaos.journal import Journal, Published
from notif.bootstrap import App
from notif.envelope import Envelope
from notif.errors import NotFound, Refused, Unavailable
from notif.ports import Publication

PERSON = "person-of-the-harness.test"
"""The domain of every recipient: it may stand nowhere but in mails and in Postgres."""
HOUSE, SHOP = "mail.acme.test", "shop.acme.test"
"""Sender domains: half of all letters come from the shop."""
PUBLISHERS = 3
AGAIN = 0.2
"""Seconds until what could not be published is published again, with the same envelope."""
HANDS_IDLE = 0.5
"""Seconds, on average, between two things a person or the product does to jobs that are there already."""


class Load:
    """`rate`: jobs a second. Every thread draws from its own chance. Start it, later `stop` it."""

    def __init__(self, publisher: App, operator: App, tenants: Sequence[UUID], seed: int, rate: float) -> None:
        self._publisher, self._operator, self._tenants = publisher, operator, tenants
        self._seed, self._rate = seed, rate
        self.journal = Journal()
        self._over, self._given_up = threading.Event(), threading.Event()
        names = [*(f"publisher {n}" for n in range(1, PUBLISHERS + 1)), "hands"]
        self._threads = [threading.Thread(target=self._run, args=(name,), name=name, daemon=True) for name in names]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Nothing new begins; what was begun goes on until it is taken."""
        self._over.set()

    def join(self, seconds: float) -> bool:
        """Whether all that was begun is taken by then."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._given_up.set()
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")  # noqa: S311 - to be drawn again
        turn, pause = (
            (self._decide, HANDS_IDLE) if name == "hands" else (self._publish, PUBLISHERS / self._rate)
        )  # fmt: skip
        while not self._over.wait(chance.expovariate(1 / pause)):
            try:
                turn(chance)
            except Exception as error:  # noqa: BLE001 - whatever it is, the product should not have met it
                self.journal.surprises.append(f"{name}: {type(error).__name__}: {error}")

    # ---- publish
    def _publish(self, chance: random.Random) -> None:
        """One job, or now and then ten in one transaction; one in five is for later."""
        jobs = [self._job(chance) for _ in range(10 if chance.random() < 0.03 else 1)]
        known = [
            Published(str(job.envelope.job_id), job.envelope.kind, job.queues, time.time()) for job in jobs
        ]  # fmt: skip
        self.journal.add(known)
        while not self._given_up.is_set():
            try:
                self._publisher.queue.publish_many(jobs)
            except Unavailable:
                for job in known:
                    job.refusals += 1
                time.sleep(AGAIN)
            else:
                for job in known:
                    job.taken = True
                return

    def _job(self, chance: random.Random) -> Publication:
        kind = chance.choices(list(SHARES), list(SHARES.values()))[0]
        number = chance.randrange(10_000)
        envelope = Envelope.new(chance.choice(self._tenants), kind, DATA[kind](number))
        later = datetime.now(UTC) + timedelta(seconds=chance.uniform(1, 5)) if chance.random() < 0.2 else None
        return Publication(self._publisher.kinds.get(kind).all_queues, envelope, later)

    # ---- cancel, replay, discard
    def _decide(self, chance: random.Random) -> None:
        try:
            if chance.random() < 0.5:
                self._cancel(chance)
            else:
                self._answer_a_letter(chance)
        except (Unavailable, Refused, NotFound):
            pass  # the checker takes either outcome, once

    def _cancel(self, chance: random.Random) -> None:
        job = self.journal.one_of_the_last(chance)
        if job and not job.cancelled:
            job.cancelled = self._publisher.queue.cancel(UUID(job.job))

    def _answer_a_letter(self, chance: random.Random) -> None:
        letters = self._operator.letters.list(most=50)
        if not letters:
            return
        letter = chance.choice(letters)
        if chance.random() < 0.1:
            self._operator.letters.discard(letter.id, reason="nobody needs it", who="chaos")
            return
        lifetime = self._operator.terms(letter.queue).key_lifetime
        self._operator.letters.replay(letter.id, lifetime, accept=False, who="chaos")


def _mail(number: int) -> dict[str, Any]:
    return {
        "from": f"Acme <hello@{SHOP if number % 2 else HOUSE}>",
        "to": [f"p{number}@{PERSON}"],
        "subject": f"Message {number}",
        "text": "Hello.",
    }


def _order(number: int) -> dict[str, Any]:
    return {"email": f"p{number}@{PERSON}", "name": "Ann", "order_number": f"A-{number}", "carrier": "DHL"}


DATA: dict[str, Callable[[int], dict[str, Any]]] = {
    "email.message": _mail,
    "newsletter": _mail,
    "order.shipped": _order,
    "order.placed": _order,
    "points.earned": lambda number: {"points": number},
}
SHARES = {"email.message": 3, "order.shipped": 3, "newsletter": 3, "order.placed": 2, "points.earned": 1}
"""How many of twelve jobs are of a kind."""
