"""What no schedule reaches, and a look at the statements found: each was wrong once."""

import json
from datetime import timedelta
from uuid import UUID

import pytest

from tests.protocol.stage import CONSUMERS, MAIL_QUEUES, TENANTS, Stage
from tests.protocol.world import PROVIDER, job_id

JOB = job_id(1)
QUEUE = MAIL_QUEUES[0]
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def empty(stage: Stage) -> None:
    stage.reset()
    stage.clock.now = 0


def publish(stage: Stage, tenant: UUID, **more: object) -> None:
    job = {
        "job_id": str(JOB),
        "tenant_id": str(tenant),
        "correlation_id": "c",
        "kind": "order",
        "data": {},
        "queue": QUEUE,
        "consumer": CONSUMERS[QUEUE],
        "schema_hash": "",
        "sender_domain": "order.test",
        "expiry": "expired",
        "fence_ttl": "7 days",
        "resend_unknown": False,
        "run_at": None,
        "max_age": None,
    }
    stage.publisher.call("SELECT core.publish(%s::jsonb)", (json.dumps([{**job, **more}]),))


def picked(stage: Stage) -> list[int]:
    """Generations of what the relay raised for a push."""
    pick = "SELECT generation FROM core.pick(%s, %s, true, 5, 4, %s, '-infinity') WHERE job_id IS NOT NULL"
    return [row[0] for row in stage.maintenance.call(pick, (QUEUE, PROVIDER, UUID(int=0)))]


def gate(stage: Stage, generation: int) -> str | None:
    verdict: str | None = stage.worker.call(
        "SELECT verdict FROM core.gate(%s, %s, %s, %s, %s)", (JOB, QUEUE, generation, PROVIDER, DAY)
    )[0][0]
    return verdict


def settle(stage: Stage, generation: int, verdict: str, since: float | None = None) -> str:
    state: str = stage.worker.call(
        "SELECT core.settle(%s, %s, %s, %s, 5, %s, 30, 'ready', '', '', '', false, %s)",
        (JOB, QUEUE, generation, DAY, verdict, since),
    )[0][0]
    return state


def claim(stage: Stage) -> int:
    (pushed,) = picked(stage)
    row = stage.worker.call(
        "SELECT generation FROM core.claim(%s, %s, %s, %s, %s, %s, %s)",
        (JOB, QUEUE, pushed, PROVIDER, DAY, timedelta(seconds=20), b"{}"),
    )
    generation: int = row[0][0]
    return generation


def causes(stage: Stage) -> list[tuple[UUID, str]]:
    return stage.maintenance.call(
        "SELECT tenant_id, cause FROM core.dead_letters WHERE status = 'pending_review' ORDER BY id"
    )


def test_an_id_of_another_tenant_is_one_letter_however_often_it_is_published(stage: Stage) -> None:
    publish(stage, TENANTS[0])
    assert settle(stage, claim(stage), "delivered") == "delivered"
    publish(stage, TENANTS[1])
    assert settle(stage, picked(stage)[0], "gate") == "dead"
    publish(stage, TENANTS[1])
    (generation,) = picked(stage)
    assert gate(stage, generation) == "duplicate"
    assert settle(stage, generation, "gate") == "duplicate"
    assert causes(stage) == [(TENANTS[1], "foreign")]


def test_an_id_of_another_tenant_beside_a_pending_letter_is_a_letter_of_its_own(stage: Stage) -> None:
    publish(stage, TENANTS[0])
    settle(stage, claim(stage), "dead")
    publish(stage, TENANTS[1])
    assert settle(stage, picked(stage)[0], "gate") == "dead"
    assert causes(stage) == [(TENANTS[0], ""), (TENANTS[1], "foreign")]
    (letter,) = stage.maintenance.call("SELECT id FROM core.dead_letters WHERE cause = 'foreign'")
    stage.maintenance.call("SELECT core.discard(%s, 'not theirs', 'test')", (letter[0],))
    (first,) = stage.maintenance.call("SELECT id FROM core.dead_letters WHERE status = 'pending_review'")
    stage.maintenance.call("SELECT core.replay(%s, %s, false, 'test')", (first[0], DAY))
    assert gate(stage, picked(stage)[0]) is None, "the other tenant's discard is no fence for this one's replay"


def test_poison_in_the_place_of_a_job_whose_letter_is_pending_ends_it(stage: Stage) -> None:
    publish(stage, TENANTS[0])
    settle(stage, claim(stage), "dead")
    publish(stage, TENANTS[0])
    (generation,) = picked(stage)
    bury = "SELECT core.bury_poison(%s, %s, 'x', %s, %s, %s, 'spoilt')"
    assert stage.worker.call(bury, (QUEUE, CONSUMERS[QUEUE], JOB, generation, b"?"))[0][0] is False
    assert stage.maintenance.call("SELECT verdict FROM core.delivery WHERE job_id = %s", (JOB,)) == [("duplicate",)]
    assert stage.maintenance.call("SELECT 1 FROM core.outbox") == []


def test_an_expired_job_of_a_halted_domain_comes_to_its_end(stage: Stage) -> None:
    publish(stage, TENANTS[0], max_age="60 seconds")
    stage.worker.call("SELECT core.close_provider(%s, 'order.test', 'halted', 'unverified', NULL, NULL)", (PROVIDER,))
    assert picked(stage) == []
    stage.clock.now = 61
    (generation,) = picked(stage)
    assert settle(stage, generation, "gate") == "expired"


def test_a_settle_that_was_repeated_for_a_day_does_not_make_the_key_younger(stage: Stage) -> None:
    publish(stage, TENANTS[0])
    generation = claim(stage)
    stage.clock.now = 86_400 - 60
    assert settle(stage, generation, "retry", since=1.0) == "dead"
    assert causes(stage) == [(TENANTS[0], "unrepeatable")]


def test_a_lost_row_that_was_locked_when_the_lost_are_ended_is_not_pushed_once_more(stage: Stage) -> None:
    publish(stage, TENANTS[0])
    claim(stage)
    stage.owner.execute("UPDATE core.outbox SET attempts = 5")
    stage.clock.now = 21
    with stage.mutated((("end_lost", "x.attempts >= p_max_attempts", "false"),)):  # as if it had been locked then
        assert picked(stage) == []
    assert picked(stage) == []
    assert causes(stage) == [(TENANTS[0], "worker_lost")]


def renewed(stage: Stage, generation: int) -> list[tuple[int]]:
    minute = timedelta(minutes=1)
    call = "SELECT generation FROM core.renew(ARRAY[%s]::uuid[], ARRAY[%s], ARRAY[%s]::bigint[], ARRAY[%s]::interval[], %s)"
    return stage.worker.call(call, (JOB, QUEUE, generation, minute, timedelta(seconds=20)))


def test_a_worker_that_lost_its_claim_extends_nobodys_lease(stage: Stage) -> None:
    """The schedules rarely see it: a lease that is extended by another only makes its loss be noticed later."""
    publish(stage, TENANTS[0])
    first = claim(stage)
    stage.clock.now += 21
    second = claim(stage)
    stage.clock.now += 5
    due = "SELECT due_at FROM core.outbox WHERE job_id = %s"
    before = stage.maintenance.call(due, (JOB,))
    assert renewed(stage, first) == []
    assert stage.maintenance.call(due, (JOB,)) == before
    assert renewed(stage, second) == [(second,)]
    assert stage.maintenance.call(due, (JOB,)) > before
