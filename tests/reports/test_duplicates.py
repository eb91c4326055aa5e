"""Delivered, pushed or fired more than once: each arrives once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notif.adapters.postgres.database import Database
from notif.adapters.postgres.publisher import OutboxPublisher
from notif.errors import ConfigurationError, Unavailable
from notif.ports import Publication, Reference
from tests.config.files import load
from tests.kit import EMAIL, Installation
from tests.reports.ways import copies, held_by, passed, relay_of, silent
from tests.spine.hands import Hands
from tests.spine.relays import Leaky, on_redis


def test_b02_a_reference_delivered_eight_times_at_once_is_one_call(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    gate = threading.Barrier(8)

    def deliver(_: int) -> str:
        gate.wait(10)
        return hands.handle(ref)

    with ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(deliver, range(8)))
    assert sorted(ends) == ["delivered"] + ["gone"] * 7
    assert (len(notif.sandbox.requests()), len(notif.mails_of(job))) == (1, 1)


def test_b19_a_long_drain_stays_alive_to_the_others(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    other = Hands(notif, hands.provider)
    mine, theirs = hands.worker.broker, other.worker.broker
    hands.provider = other.provider = hands.app.provider("resend")  # the last one made has the SDK
    hands.worker.closings.refresh()
    assert next(mine.consume(EMAIL, 16, 1000)) is not None
    mine.emit_before("worker_shutdown", object())
    silent(notif, mine.broker_id)
    mine.reap()  # what goes on in the background until the last call has settled
    theirs.reap()
    assert (held_by(notif, mine.broker_id), on_redis(notif)) == (1, [])
    silent(notif, mine.broker_id)  # and even if it could not say so:
    theirs.reap()
    assert len(on_redis(notif)) == 1
    assert [hands.handle(ref), other.handle(ref)] == ["delivered", "gone"]
    other.close()
    assert (len(notif.sandbox.requests()), len(notif.mails_of(job))) == (1, 1)


def test_b21_scheduled_far_beyond_a_lease_is_called_once_and_not_before(notif: Installation, hands: Hands) -> None:
    later = notif.envelope()
    notif.app.queue.schedule(EMAIL, later, datetime.now(UTC) + timedelta(minutes=5))
    other = Hands(notif, hands.provider)
    try:
        for _ in range(12):  # many leases of 6 s
            passed(notif, hands, 24)
            assert hands.turn() + other.turn() == []
        assert notif.sandbox.requests() == []
        passed(notif, hands, 15)
        assert hands.turn() + other.turn() == ["delivered"]
    finally:
        other.close()
    assert len(notif.sandbox.requests()) == 1


def test_b38_a_job_that_is_over_at_once_still_guards_its_id(notif: Installation, hands: Hands) -> None:
    """Five publishers, a few milliseconds apart, of a slot's one id; the first job has ended before the second comes."""
    slot = notif.envelope()
    ends = []
    for _ in range(5):
        notif.app.queue.publish(EMAIL, slot)
        ends += hands.turn()
    assert ends == ["delivered"] + ["duplicate"] * 4
    assert len(notif.sandbox.requests()) == 1
    week = "SELECT expires_at >= processed_at + interval '7 days' FROM core.processed_job WHERE job_id = %s"
    assert notif.one(week, slot.job_id) is True


def test_b48_two_relays_raise_every_row_once(notif: Installation, hands: Hands) -> None:
    notif.send()
    copies(notif, 2_999)
    gate = threading.Barrier(2)

    def drain(_: int) -> list[Reference]:
        gate.wait(10)
        return [ref for window in range(250, 3_250, 250) for ref in hands.pick(window=window)]

    with ThreadPoolExecutor(2) as relays:
        first, second = relays.map(drain, range(2))
    first += hands.pick(window=4_000)  # rows that each passed over because the other held them
    jobs = [ref.job_id for ref in (*first, *second)]
    assert (len(jobs), len(set(jobs))) == (3_000, 3_000)


def test_b69_started_again_from_the_top_four_times(notif: Installation, hands: Hands) -> None:
    """Whoever publishes with ids derived from recipients may begin again, wherever it was interrupted."""
    jobs = [Publication((EMAIL,), notif.envelope(email=f"u{n}@example.test")) for n in range(60)]
    for reached in (10, 25, 40, 60):
        notif.app.queue.publish_many(jobs[:reached])
        while hands.turn():
            pass
    assert sorted(mail["to"] for mail in notif.mails()) == sorted([f"u{n}@example.test"] for n in range(60))
    assert len(notif.sandbox.requests()) == 60


def test_b74_two_at_the_same_moment_under_one_id_are_one_row(notif: Installation, hands: Hands) -> None:
    database = Database(notif.servers.url("notif_publisher", notif.database), pool=8, name="b74")
    queue = OutboxPublisher(database, notif.app.checker)
    same = notif.envelope()
    gate = threading.Barrier(8)

    def publish(_: int) -> None:
        gate.wait(10)
        queue.publish(EMAIL, same)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(publish, range(8)))
    database.close()
    assert notif.one("SELECT count(*) FROM core.outbox") == 1
    assert hands.turn() == ["delivered"]


def test_b77_a_lease_shorter_than_a_call_does_not_boot(tmp_path: Path) -> None:
    text = "providers: {{resend: {{deadline: 50s}}}}\nworker: {{lease: {lease}}}\n"
    with pytest.raises(
        ConfigurationError, match=r"worker\.lease: 45s is too short for providers\.resend\.deadline 50s"
    ):
        load(tmp_path, text.format(lease="45s"))
    assert load(tmp_path, text.format(lease="55s")).worker.lease == timedelta(seconds=55)


def test_b78_a_redelivered_copy_beside_a_waiting_retry_does_nothing(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    notif.sandbox.faults([{"fault": "reset_after"}])
    assert hands.handle(ref) == "retrying"
    assert [hands.handle(ref) for _ in range(3)] == ["gone"] * 3  # the restart's copies, before and
    notif.due()
    assert hands.turn() == ["delivered"]
    assert hands.handle(ref) == "gone"  # after the retry
    assert (len(notif.sandbox.requests()), len(notif.mails_of(job))) == (2, 1)


def test_b99_four_relays_and_four_workers_are_one_mail(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    gate = threading.Barrier(4)

    def process(_: int) -> list[str]:
        gate.wait(10)
        return hands.turn() + hands.turn()

    with ThreadPoolExecutor(4) as processes:
        ends = [end for found in processes.map(process, range(4)) for end in found]
    assert ends == ["delivered"]
    assert (len(notif.sandbox.requests()), len(notif.mails_of(job))) == (1, 1)


class Killed(BaseException):
    """The process is no more."""


def test_b102_accepted_and_then_our_commit_fails(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.pick()
    real = hands.ledger

    class Cut:
        """The real ledger; the process dies over its settle."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def settle(self, *_: Any) -> str:
            raise Killed

    hands.ledger = Cut()
    with pytest.raises(Killed):
        hands.handle(ref)
    hands.ledger = real
    assert notif.rows("SELECT state, attempts FROM core.outbox") == [("claimed", 1)]  # the claim is not undone
    notif.due()
    assert hands.turn() == ["delivered"]
    calls = notif.sandbox.requests()
    assert len(calls) == 2
    assert len({(call["key"], call["body_hash"]) for call in calls}) == 1
    assert len(notif.mails_of(job)) == 1


def test_b102_a_commit_without_an_answer_is_asked_again_not_called_again(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    real = hands.ledger
    lost: list[str] = []

    class Unanswered:
        """The real ledger; the first settle is committed, and its answer lost."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def settle(self, *arguments: Any) -> str:
            became = real.settle(*arguments)
            if not lost:
                lost.append(became)
                raise Unavailable("the connection broke")
            return became

    hands.ledger = Unanswered()
    assert hands.turn() == ["gone"]
    assert (lost, notif.state(job)) == (["delivered"], "delivered")
    assert len(notif.sandbox.requests()) == 1


def test_b104_a_push_that_fails_after_the_commit_suppresses_nobody(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    carrier = Leaky(hands.carrier)
    carrier.lost = 1
    relay = relay_of(hands, carrier)
    relay.poll()
    assert (on_redis(notif), notif.state(job)) == ([], "pushed")
    relay.poll()  # the next turn, not in 20 s
    assert len(on_redis(notif)) == 1
    assert [hands.handle(ref) for ref in carrier.pushed] == ["delivered"]
    assert len(notif.mails_of(job)) == 1
