"""How long a job may wait, as a property: the real functions under a clock that the test moves."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from notif.adapters.jinja import JinjaRenderer
from notif.adapters.postgres.ledger import PostgresLedger
from notif.adapters.postgres.publisher import OutboxPublisher
from notif.adapters.postgres.relay import PostgresOutbox
from notif.compose import Composer
from notif.config import Delivery
from notif.envelope import Envelope
from notif.kinds import Kind, Kinds
from notif.lanes import Lane, queue_of
from notif.messages import EmailMessage
from notif.ports import Claimed, Gated, Reference, Settlement, Stop, Terms, Turn
from notif.publishing import Checker
from notif.relay import NOBODY
from tests.protocol.stage import CLOCK, TENANTS, Clock, ClockedDatabase
from tests.servers import Servers, new_database

MAIL = {"from": "shop@acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}
DAY = 86_400_000
MICROSECOND = timedelta(microseconds=1)


class Timeline:
    """One database whose clock stands where `at` puts it."""

    def __init__(self, servers: Servers, templates: Path) -> None:
        database = new_database(servers)
        self.clock = Clock()
        self.owner = psycopg.connect(servers.url("notif_owner", database), autocommit=True)
        self.owner.execute(CLOCK)
        self.owner.execute("INSERT INTO core.tenant (id, name, cell_id) VALUES (%s, 'Acme', %s)", (TENANTS[0],) * 2)
        self.publisher, self.worker, self.maintenance = self._databases = [
            ClockedDatabase(servers.url(role, database), self.clock)
            for role in ("notif_publisher", "notif_worker", "notif_maintenance")
        ]
        self.composer = Composer(JinjaRenderer(templates), Delivery())
        self.ledger, self.outbox = PostgresLedger(self.worker), PostgresOutbox(self.maintenance)

    def at(self, moment: timedelta) -> None:
        self.clock.now = moment.total_seconds()

    def publish(self, kind: Kind, run_at: timedelta | None) -> None:
        """The outbox's only row."""
        self.owner.execute("TRUNCATE core.outbox")
        (queue,) = kind.all_queues
        checker = Checker(Kinds([kind]), self.composer, {queue: queue}, 10_000, self.clock.moment)
        when = None if run_at is None else self.clock.moment_in(run_at.total_seconds() - self.clock.now)
        job = Envelope.new(TENANTS[0], kind.name, MAIL)
        OutboxPublisher(self.publisher, checker).publish(queue, job, run_at=when)

    def pushed(self, terms: Terms) -> Reference:
        (ref,) = self.outbox.pick([Turn(terms, 10, NOBODY, None)]).refs
        return ref

    def close(self) -> None:
        self.owner.close()
        for database in self._databases:
            database.close()


@pytest.fixture(scope="module")
def timeline(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Timeline]:
    made = Timeline(servers, tmp_path_factory.mktemp("templates"))
    yield made
    made.close()


def spans(most: int) -> st.SearchStrategy[timedelta]:
    """Up to so many days, to the millisecond."""
    return st.integers(0, most * DAY).map(lambda milliseconds: timedelta(milliseconds=milliseconds))


edges = st.sampled_from((-MICROSECOND, timedelta(0), MICROSECOND))
PUBLISHED = timedelta(days=400)
HOUR = timedelta(hours=1)


@settings(max_examples=50, deadline=None)
@given(
    lane=st.sampled_from(Lane),
    max_age=st.none() | spans(30).filter(bool),
    ahead=st.none() | spans(3_000) | spans(10).map(lambda span: -span),
    waits=st.lists(spans(2), max_size=2),
    late=edges | spans(60) | spans(60).map(lambda span: -span),
)
@example(lane=Lane.TRANSACTIONAL, max_age=HOUR, ahead=None, waits=[], late=timedelta(0))
@example(lane=Lane.TRANSACTIONAL, max_age=HOUR, ahead=HOUR * 5, waits=[HOUR], late=MICROSECOND)
@example(lane=Lane.MARKETING, max_age=HOUR, ahead=-HOUR * 2, waits=[], late=-MICROSECOND)
@example(lane=Lane.TRANSACTIONAL, max_age=None, ahead=None, waits=[HOUR], late=MICROSECOND)
@example(lane=Lane.MARKETING, max_age=None, ahead=None, waits=[], late=timedelta(days=60))
def test_a_job_is_too_old_after_its_age_from_when_it_was_first_due_and_not_before(
    timeline: Timeline,
    lane: Lane,
    max_age: timedelta | None,
    ahead: timedelta | None,
    waits: list[timedelta],
    late: timedelta,
) -> None:
    """`late` counts from due + age. Waiting again (a closed provider, a retry) gives nobody more time; gate and claim agree."""
    age = max_age or (timedelta(days=3) if lane is Lane.TRANSACTIONAL else None)
    due = PUBLISHED + max(ahead or timedelta(0), timedelta(0))
    now = due + (age or timedelta(0)) + late
    terms = Terms(queue_of("email", lane), queue_of("email", lane))
    timeline.at(PUBLISHED)
    kind = Kind(name="email.message", lane=lane, model=EmailMessage, channels=("email",), max_age=max_age)
    timeline.publish(kind, None if ahead is None else PUBLISHED + ahead)
    at = due
    for wait in waits:
        timeline.at(at)
        ref = timeline.pushed(terms)
        again = Settlement("deferred", wait=wait.total_seconds(), refund=True)
        assert timeline.ledger.settle(ref, ref.generation, terms, again) == "ready"
        at += wait
    timeline.at(at)
    ref = timeline.pushed(terms)
    timeline.at(now)
    gated, claimed = timeline.ledger.gate(ref, terms), timeline.ledger.claim(ref, terms, b"request")
    if age is not None and now > due + age:
        assert isinstance(gated, Stop)
        assert gated.verdict == ("expired" if max_age else "too_late")
        assert claimed == gated
    else:
        assert isinstance(gated, Gated)
        assert isinstance(claimed, Claimed)
