"""One suite for every QueuePort: the outbox, and the queue in memory."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, StaticPool

from notif.adapters.postgres.database import driver_url
from notif.bootstrap.memory import memory_queue
from notif.envelope import Envelope
from notif.errors import (
    InvalidEnvelope,
    JobConflict,
    TooLarge,
    UnknownKind,
    UnknownQueue,
    UnknownTenant,
    WrongLane,
)
from notif.ports import JobsPort, Publication, QueuePort
from tests.kit import EMAIL, Installation

DATA = {"email": "ann@example.test", "name": "Ann", "order_number": "A-1", "carrier": "DHL"}


class Both(QueuePort, JobsPort):
    """What both adapters are."""


@dataclass
class Subject:
    """A queue under test, and what the suite needs to know about it."""

    queue: Any
    tenant: uuid.UUID
    session: Callable[[], AbstractContextManager[Session]]

    def envelope(self, kind: str = "order.shipped", *, job_id: uuid.UUID | None = None, **data: Any) -> Envelope:
        return Envelope.new(self.tenant, kind, {**DATA, **data}, job_id=job_id)

    def states(self, envelope: Envelope) -> dict[str, str]:
        return {status.queue: status.state for status in self.queue.status(envelope.job_id)}


@pytest.fixture(params=["outbox", "memory"])
def subject(request: pytest.FixtureRequest, notif: Installation) -> Iterator[Subject]:
    if request.param == "outbox":
        engine = create_engine(driver_url(notif.servers.url("notif_publisher", notif.database)), poolclass=NullPool)
        queue: Any = notif.app.queue
    else:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        queue = memory_queue(notif.app, tenants=[notif.tenant])

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine) as opened:
            yield opened

    yield Subject(queue, notif.tenant, session)
    engine.dispose()


def test_a_job_is_published_to_its_queue(subject: Subject) -> None:
    envelope = subject.envelope()
    subject.queue.publish(EMAIL, envelope)
    assert subject.states(envelope) == {EMAIL: "ready"}


def test_one_row_per_queue(subject: Subject) -> None:
    envelope = subject.envelope("order.placed", points=3)
    subject.queue.publish([EMAIL, "loyalty"], envelope)
    assert subject.states(envelope) == {EMAIL: "ready", "loyalty": "ready"}


def test_the_same_content_twice_is_one_job(subject: Subject) -> None:
    envelope = subject.envelope()
    subject.queue.publish(EMAIL, envelope)
    subject.queue.publish(EMAIL, envelope)
    subject.queue.publish_many([Publication((EMAIL,), envelope), Publication((EMAIL, EMAIL), envelope)])
    assert len(subject.queue.status(envelope.job_id)) == 1


def test_other_content_under_the_same_id_is_refused_and_changes_nothing(subject: Subject) -> None:
    envelope = subject.envelope()
    subject.queue.publish(EMAIL, envelope)
    other, bystander = subject.envelope(job_id=envelope.job_id, name="Bob"), subject.envelope()
    with pytest.raises(JobConflict, match=str(envelope.job_id)):
        subject.queue.publish_many([Publication((EMAIL,), bystander), Publication((EMAIL,), other)])
    assert subject.states(bystander) == {}


def test_other_content_within_one_call_is_refused(subject: Subject) -> None:
    envelope = subject.envelope()
    other = subject.envelope(job_id=envelope.job_id, name="Bob")
    with pytest.raises(JobConflict):
        subject.queue.publish_many([Publication((EMAIL,), envelope), Publication((EMAIL,), other)])
    assert subject.states(envelope) == {}


def test_later_is_scheduled(subject: Subject) -> None:
    at = datetime.now(UTC) + timedelta(days=7)
    envelope = subject.envelope()
    subject.queue.schedule(EMAIL, envelope, at)
    (status,) = subject.queue.status(envelope.job_id)
    assert (status.state, status.waits_for) == ("scheduled", "its time")
    assert abs(status.until - at) < timedelta(milliseconds=1)


def test_a_time_that_has_passed_is_now(subject: Subject) -> None:
    envelope = subject.envelope()
    subject.queue.schedule(EMAIL, envelope, datetime.now(UTC) - timedelta(days=1))
    assert subject.states(envelope) == {EMAIL: "ready"}


def test_ten_years_ahead_and_no_further(subject: Subject) -> None:
    subject.queue.schedule(EMAIL, subject.envelope(), datetime.now(UTC) + timedelta(days=3650))
    with pytest.raises(InvalidEnvelope, match=r"run_at.*ten years"):
        subject.queue.schedule(EMAIL, subject.envelope(), datetime.now(UTC) + timedelta(days=3700))


def test_a_time_needs_its_zone(subject: Subject) -> None:
    with pytest.raises(InvalidEnvelope, match="run_at: has no time zone"):
        subject.queue.schedule(EMAIL, subject.envelope(), datetime(2030, 1, 1))  # noqa: DTZ001


def test_with_a_session_committed_means_published(subject: Subject) -> None:
    envelope = subject.envelope()
    with subject.session() as session:
        session.execute(text("SELECT 1"))
        subject.queue.publish(EMAIL, envelope, session=session)
        assert subject.states(envelope) == {}
        session.commit()
    assert subject.states(envelope) == {EMAIL: "ready"}


def test_with_a_session_rolled_back_means_never(subject: Subject) -> None:
    envelope = subject.envelope()
    with subject.session() as session:
        session.execute(text("SELECT 1"))
        subject.queue.publish(EMAIL, envelope, session=session)
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    assert subject.states(envelope) == {}


def test_cancel_answers_per_queue(subject: Subject) -> None:
    envelope = subject.envelope("order.placed")
    subject.queue.publish([EMAIL, "loyalty"], envelope)
    assert subject.queue.cancel(envelope.job_id) == {EMAIL: True, "loyalty": True}
    assert subject.states(envelope) == {EMAIL: "cancelled", "loyalty": "cancelled"}
    assert subject.queue.cancel(envelope.job_id) == {EMAIL: False, "loyalty": False}
    assert subject.queue.cancel(uuid.uuid4()) == {}


@pytest.mark.parametrize(
    ("kind", "queue", "error", "words"),
    [
        ("order.shiped", EMAIL, UnknownKind, "did you mean 'order.shipped'"),
        ("order.shipped", "notif.email.transactionl", UnknownQueue, f"did you mean '{EMAIL}'"),
        ("order.shipped", "notif.email.marketing", WrongLane, f"use '{EMAIL}' instead"),
        ("order.shipped", "loyalty", UnknownQueue, "does not go to 'loyalty'"),
    ],
)
def test_wrong_names_are_refused_with_the_right_one(
    subject: Subject, kind: str, queue: str, error: type[Exception], words: str
) -> None:
    envelope = subject.envelope(kind)
    with pytest.raises(error, match=words):
        subject.queue.publish(queue, envelope)
    assert subject.states(envelope) == {}


def test_no_queue_at_all_is_refused(subject: Subject) -> None:
    with pytest.raises(UnknownQueue, match="none given"):
        subject.queue.publish([], subject.envelope())


def test_an_unknown_tenant_is_refused_with_the_nearest(subject: Subject) -> None:
    typo = uuid.UUID(str(subject.tenant)[:-1] + ("0" if str(subject.tenant)[-1] != "0" else "1"))
    envelope = Envelope.new(typo, "order.shipped", DATA)
    with pytest.raises(UnknownTenant, match=f"{typo}.*did you mean '?{subject.tenant}"):
        subject.queue.publish(EMAIL, envelope)


def test_data_that_does_not_fit_is_refused_naming_the_field(subject: Subject) -> None:
    with pytest.raises(InvalidEnvelope, match="email"):
        subject.queue.publish(EMAIL, subject.envelope(email="no address"))
    with pytest.raises(InvalidEnvelope, match="surprise"):
        subject.queue.publish(EMAIL, subject.envelope(surprise=1))


def test_an_envelope_over_the_limit_is_refused(subject: Subject) -> None:
    message = {"from": "a@mail.acme.test", "to": "b@example.test", "subject": "s", "text": "x" * 300_000}
    with pytest.raises(TooLarge, match=r"the limit is 262,144"):
        subject.queue.publish(EMAIL, Envelope.new(subject.tenant, "email.message", message))


def test_the_same_job_twice_in_a_session_is_one(subject: Subject) -> None:
    envelope = subject.envelope()
    with subject.session() as session:
        session.execute(text("SELECT 1"))
        subject.queue.publish(EMAIL, envelope, session=session)
        subject.queue.publish(EMAIL, envelope, session=session)
        session.commit()
    assert len(subject.queue.status(envelope.job_id)) == 1


def test_a_savepoint_rolled_back_takes_only_its_own_along(subject: Subject) -> None:
    before, inside, after = subject.envelope(), subject.envelope(), subject.envelope()
    with subject.session() as session:
        session.execute(text("SELECT 1"))
        subject.queue.publish(EMAIL, before, session=session)
        with session.begin_nested() as savepoint:
            subject.queue.publish(EMAIL, inside, session=session)
            savepoint.rollback()
        subject.queue.publish(EMAIL, after, session=session)
        session.commit()
    assert [subject.states(one) for one in (before, inside, after)] == [{EMAIL: "ready"}, {}, {EMAIL: "ready"}]


def test_a_savepoint_released_is_no_commit(subject: Subject) -> None:
    envelope = subject.envelope()
    with subject.session() as session:
        session.execute(text("SELECT 1"))
        with session.begin_nested():
            subject.queue.publish(EMAIL, envelope, session=session)
        session.rollback()
    assert subject.states(envelope) == {}


def test_a_connection_is_a_session_too(subject: Subject) -> None:
    kept, lost = subject.envelope(), subject.envelope()
    with subject.session() as session:
        connection = session.connection().engine.connect()
        with connection.begin():
            subject.queue.publish(EMAIL, kept, session=connection)
        with connection.begin() as transaction:
            subject.queue.publish(EMAIL, lost, session=connection)
            transaction.rollback()
        connection.close()
    assert (subject.states(kept), subject.states(lost)) == ({EMAIL: "ready"}, {})


def test_a_cancelled_jobs_id_may_be_used_with_other_content(subject: Subject) -> None:
    envelope = subject.envelope()
    subject.queue.publish(EMAIL, envelope)
    subject.queue.cancel(envelope.job_id)
    subject.queue.publish(EMAIL, subject.envelope(job_id=envelope.job_id, name="Bob"))
