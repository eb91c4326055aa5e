"""What the maintenance role cleans, and what it never may: in batches, until nothing is left."""

from datetime import timedelta
from typing import Any

import pytest

from notif.ports import UpkeepPort
from notif.upkeep import Upkeep
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

DAYS = timedelta(days=90)
FENCES = """
INSERT INTO core.processed_job (job_id, consumer, tenant_id, cell_id, expires_at)
SELECT gen_random_uuid(), 'x', (SELECT id FROM core.tenant), gen_random_uuid(), now() + make_interval(secs => %s)
FROM generate_series(1, %s)
"""
DELIVERIES = """
INSERT INTO core.delivery (job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, verdict, attempts, history,
                           published_at, ended_at, expires_at)
SELECT gen_random_uuid(), 'x', 'x', gen_random_uuid(), gen_random_uuid(), 'c', 'k', 'delivered', 1, '[]', now(), now(),
       now() + make_interval(secs => %s)
FROM generate_series(1, %s)
"""
LETTERS = """
INSERT INTO core.dead_letters (queue, consumer, cause, last_error, outcome, created_at, status, decided_at)
SELECT 'x', 'x', 'poison', '', 'failed', now() - interval '1 year', %s, now() - make_interval(secs => %s)
FROM generate_series(1, %s)
"""


class Watched:
    """The real store, and how many rows each batch took."""

    def __init__(self, real: UpkeepPort) -> None:
        self._real = real
        self.batches: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def call(*arguments: Any) -> Any:
            gone = real(*arguments)
            self.batches.setdefault(name, []).append(gone)
            return gone

        return call


@pytest.fixture
def store(notif: Installation) -> Watched:
    return Watched(notif.app.upkeep)


@pytest.fixture
def upkeep(notif: Installation, store: Watched) -> Upkeep:
    return Upkeep(store, DAYS, notif.app.provider_queues, notif.app.log)


def counted(notif: Installation, table: str) -> int:
    return int(notif.one(f"SELECT count(*) FROM core.{table}"))


def test_expired_fences_and_old_deliveries_go_in_batches(notif: Installation, upkeep: Upkeep, store: Watched) -> None:
    for statement in (FENCES, DELIVERIES):
        notif.rows(statement, -1, 2_300)
        notif.rows(statement, 3600, 5)
    assert upkeep.clean() == {"fences": 2_300, "deliveries": 2_300, "dead_letters": 0}
    assert store.batches["clean_fences"] == store.batches["clean_deliveries"] == [1_000, 1_000, 300]
    assert (counted(notif, "processed_job"), counted(notif, "delivery")) == (5, 5)
    assert upkeep.clean() == {"fences": 0, "deliveries": 0, "dead_letters": 0}


def test_the_oldest_go_first(notif: Installation) -> None:
    notif.rows(FENCES, -1, 3)
    notif.rows(FENCES, -1_000, 3)
    assert notif.app.upkeep.clean_fences(3) == 3
    assert notif.one("SELECT bool_and(expires_at > now() - interval '10 s') FROM core.processed_job") is True


def test_a_fence_whose_row_is_in_the_outbox_stays(notif: Installation, upkeep: Upkeep, hands: Hands) -> None:
    again, done = notif.envelope(), notif.envelope()
    for envelope in (again, done):
        notif.app.queue.publish(EMAIL, envelope)
    hands.turn()
    notif.app.queue.publish(EMAIL, again)
    notif.rows("UPDATE core.processed_job SET expires_at = now() - interval '1 s'")
    assert upkeep.clean()["fences"] == 1
    assert notif.rows("SELECT job_id FROM core.processed_job") == [(again.job_id,)]
    assert hands.turn() == ["duplicate"]
    assert upkeep.clean()["fences"] == 1


def test_fences_of_a_job_that_another_consumer_still_waits_for(
    loyalty: Installation, upkeep: Upkeep, hands: Hands
) -> None:
    """Each consumer has its own fence: only that of the consumer whose row is left stays."""
    loyalty.send("order.placed", **loyalty.envelope().data, points=1)
    hands.turn()
    loyalty.rows("UPDATE core.processed_job SET expires_at = now() - interval '1 s'")
    assert upkeep.clean()["fences"] == 1
    assert hands.turn("loyalty") == ["delivered"]


def test_no_fence_that_keeps_them_in_the_way_stops_a_batch(notif: Installation, upkeep: Upkeep, store: Watched) -> None:
    """The oldest are all held by rows: the others go all the same, in this run."""
    for job in notif.send_many(3):
        notif.rows(
            "INSERT INTO core.processed_job (job_id, consumer, tenant_id, cell_id, expires_at) "
            "VALUES (%s, %s, %s, gen_random_uuid(), now() - interval '1 hour')",
            job,
            EMAIL,
            notif.tenant,
        )
    notif.rows(FENCES, -1, 4)
    assert notif.app.upkeep.clean_fences(3) == 3
    assert upkeep.clean()["fences"] == 1
    assert counted(notif, "processed_job") == 3


def test_decided_letters_go_after_their_retention_and_pending_ones_never(notif: Installation, upkeep: Upkeep) -> None:
    beyond, within = (DAYS + timedelta(minutes=1)).total_seconds(), (DAYS - timedelta(minutes=1)).total_seconds()
    for status in ("replayed", "discarded"):
        notif.rows(LETTERS, status, beyond, 700)
        notif.rows(LETTERS, status, within, 2)
    notif.rows(LETTERS, "pending_review", beyond, 3)
    notif.rows("UPDATE core.dead_letters SET decided_at = NULL WHERE status = 'pending_review'")
    assert upkeep.clean() == {"fences": 0, "deliveries": 0, "dead_letters": 1_400}
    left = notif.rows("SELECT status, count(*)::int FROM core.dead_letters GROUP BY 1 ORDER BY 1")
    assert left == [("discarded", 2), ("pending_review", 3), ("replayed", 2)]


def test_a_discarded_letters_fence_outlives_nothing_it_guards(
    notif: Installation, upkeep: Upkeep, hands: Hands
) -> None:
    """Letter and fence of a discard end by their own clocks; the job published again after both is a new job."""
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    notif.sandbox.faults([{"fault": "error", "status": 422, "name": "invalid_parameter"}])
    hands.turn()
    (letter,) = notif.app.letters.list()
    notif.app.letters.discard(letter.id, reason="no", who="ann")
    notif.rows("UPDATE core.dead_letters SET decided_at = now() - interval '91 days'")
    notif.rows("UPDATE core.processed_job SET expires_at = now() - interval '1 s'")
    assert upkeep.clean() == {"fences": 1, "deliveries": 0, "dead_letters": 1}
    notif.app.queue.publish(EMAIL, envelope)
    assert hands.turn() == ["delivered"]


def test_processes_that_said_nothing_for_a_minute_are_forgotten(notif: Installation, upkeep: Upkeep) -> None:
    notif.app.processes.beat("relay", "all")
    notif.rows(
        "INSERT INTO core.process (host, pid, role, lane, since, seen_at) SELECT 'gone', n, 'worker', 'x', now(), "
        "now() - make_interval(secs => n) FROM (VALUES (10), (30), (70)) v(n)"
    )
    assert sorted(process.role for process in notif.app.processes.list()) == ["relay", "worker"]  # heard within 15 s
    upkeep.clean()
    assert notif.rows("SELECT pid FROM core.process WHERE host = 'gone' ORDER BY 1") == [(10,), (30,)]


def test_two_who_clean_at_once_pass_each_other(notif: Installation) -> None:
    notif.rows(FENCES, -1, 6)
    with notif.app.maintenance.transaction() as other:
        assert other.exec_driver_sql("SELECT core.clean_fences(4)").scalar() == 4
        assert notif.app.upkeep.clean_fences(4) == 2  # not held up by the other's
    assert counted(notif, "processed_job") == 0


def test_waking_asks_each_provider_for_its_queues(notif: Installation, upkeep: Upkeep, store: Watched) -> None:
    notif.send()
    notif.rows("UPDATE core.outbox SET state = 'halted', due_at = 'infinity'")
    upkeep.wake()
    assert store.batches["wake_halted"] == [1]
    assert notif.one("SELECT due_at <= now() FROM core.outbox") is True
