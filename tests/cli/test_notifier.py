"""What product code calls, on the queue in memory and on the real one."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine

import notif
from notif import Envelope, Notifier
from notif.adapters.memory import MemoryQueue
from notif.bootstrap import App
from notif.bootstrap.memory import memory_queue
from notif.errors import InvalidEnvelope, UnknownKind, UnknownQueue
from tests.kit import CONFIG, EMAIL, Installation

DATA: dict[str, Any] = {"email": "ann@example.test", "name": "Ann", "order_number": "A-1", "carrier": "DHL"}
TENANT = uuid.uuid4()


@pytest.fixture
def app() -> App:
    return App.from_settings({"NOTIF_CONFIG": str(CONFIG), "NOTIF_APP": "tests.product:register"})


@pytest.fixture
def queue(app: App) -> MemoryQueue:
    return memory_queue(app)


@pytest.fixture
def in_memory(app: App, queue: MemoryQueue) -> Notifier:
    return Notifier(queue, queue, app.kinds)


def test_a_job_goes_to_every_queue_of_its_kind(in_memory: Notifier, queue: MemoryQueue) -> None:
    sent = in_memory.send(tenant_id=TENANT, kind="order.placed", data=DATA)
    assert isinstance(sent, Envelope)
    assert sorted(status.queue for status in in_memory.status(sent.job_id)) == ["loyalty", EMAIL]
    assert in_memory.queue is queue


def test_ids_are_taken_and_may_be_text(in_memory: Notifier) -> None:
    job = Envelope.new(TENANT, "x", {}).job_id
    sent = in_memory.send(
        tenant_id=str(TENANT),
        kind="order.shipped",
        data=DATA,
        channel="email",
        job_id=str(job),
        correlation_id="order-7",
    )
    assert (sent.job_id, sent.tenant_id, sent.correlation_id) == (job, TENANT, "order-7")
    assert [status.job_id for status in in_memory.status(str(job))] == [job]


def test_a_job_for_later_is_taken_back_once(in_memory: Notifier) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    job = in_memory.send(tenant_id=TENANT, kind="order.shipped", data=DATA, run_at=at).job_id
    assert in_memory.status(job)[0].until == at
    assert in_memory.cancel(str(job)) == {EMAIL: True}
    assert in_memory.cancel(job) == {EMAIL: False}
    assert in_memory.cancel(uuid.uuid4()) == {}


def test_what_can_not_be_sent_is_refused_and_named(in_memory: Notifier, queue: MemoryQueue) -> None:
    with pytest.raises(UnknownKind, match=r"did you mean 'order\.shipped'"):
        in_memory.send(tenant_id=TENANT, kind="order.shiped", data=DATA)
    with pytest.raises(UnknownQueue, match=r"kind 'order\.shipped' has no channel 'sms'"):
        in_memory.send(tenant_id=TENANT, kind="order.shipped", data=DATA, channel="sms")
    with pytest.raises(InvalidEnvelope, match="tenant_id"):
        in_memory.send(tenant_id="Acme", kind="order.shipped", data=DATA)
    with pytest.raises(InvalidEnvelope, match="job_id: 'seven' is no UUID"):
        in_memory.status("seven")
    assert not queue.jobs


@pytest.fixture
def real(notif: Installation) -> Iterator[Notifier]:
    """As product code has it: the publisher's rights and no more."""
    made = Notifier.from_settings(notif.env("notif_publisher"))
    yield made
    made.close()


def test_the_real_one_joins_the_caller_s_transaction(real: Notifier, notif: Installation) -> None:
    engine = create_engine(notif.servers.url("notif_publisher", notif.database).replace("://", "+psycopg://", 1))
    common: dict[str, Any] = {"tenant_id": notif.tenant, "kind": "order.shipped", "data": DATA}
    with engine.connect() as session:
        undone = real.send(**common, session=session)
        session.rollback()
        done = real.send(**common, session=session)
        session.commit()
    engine.dispose()
    assert real.status(undone.job_id) == []
    assert [status.state for status in real.status(done.job_id)] == ["ready"]
    assert real.cancel(done.job_id) == {EMAIL: True}


def test_the_package_names_what_product_code_needs() -> None:
    assert notif.__all__ == ["Envelope", "Notifier", "__version__"]
    with pytest.raises(AttributeError, match="has no attribute 'Notifyer'"):
        notif.Notifyer  # noqa: B018
