"""Attempts, and what must not cost one."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random

from notif.closings import throttle
from notif.ports import Publication
from tests.kit import EMAIL, Installation, eventually
from tests.reports.ways import MAIL, passed, waiting
from tests.spine.hands import Hands

HOUR = 3600.0


def requests_of(notif: Installation, job: uuid.UUID) -> int:
    return sum(request["key"] == f"{job}:{EMAIL}" for request in notif.sandbox.requests())


def test_b07_refusals_throw_nothing_away(notif: Installation, hands: Hands) -> None:
    """One of fifteen mails is refused more often than it has attempts."""
    jobs = notif.send_many(15)
    notif.sandbox.faults([{"fault": "429", "times": 7, "match": {"job": str(jobs[7])}}])
    rounds = 0
    while notif.one("SELECT count(*) FROM core.outbox"):
        hands.turn()
        passed(notif, hands, 2)
        rounds += 1
        assert rounds < 20, waiting(notif)
    assert requests_of(notif, jobs[7]) == 8
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.rows("SELECT DISTINCT attempts, verdict FROM core.delivery") == [(1, "delivered")]
    assert notif.one("SELECT count(*) FROM core.dead_letters") == 0


def test_b36_another_worker_takes_the_second_attempt_at_its_time(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    first = Hands(notif, hands.provider)
    notif.sandbox.faults([{"fault": "500"}])
    assert first.turn() == ["retrying"]
    first.app.close()  # and the worker that took it is gone
    assert notif.one("SELECT due_at - now() BETWEEN interval '30 s' AND interval '60 s' FROM core.outbox") is True
    passed(notif, hands, 28)
    assert hands.turn() == []
    passed(notif, hands, 32)
    assert hands.turn() == ["delivered"]
    assert notif.one("SELECT attempts FROM core.delivery WHERE job_id = %s", job) == 2


def test_b37_a_time_that_has_passed_is_now(notif: Installation, hands: Hands) -> None:
    now, chance = datetime.now(UTC), Random(37)
    notif.app.queue.schedule(EMAIL, notif.envelope(), now - timedelta(seconds=1))
    assert len(hands.turn()) == 1
    spread = [timedelta(seconds=chance.uniform(-30, 30)) for _ in range(299)]
    notif.app.queue.publish_many([Publication((EMAIL,), notif.envelope(), now + wait) for wait in spread])
    seen = {ref.job_id for ref in hands.pick()}
    assert len(seen) >= sum(wait <= timedelta(0) for wait in spread)  # those of the past at once
    for _ in range(4):
        before = len(seen)
        passed(notif, hands, 10)
        seen |= {ref.job_id for ref in hands.pick()}
        assert before == 299 or len(seen) > before  # and each of the others in its time
    assert len(seen) == 299


def test_b40_deferred_for_25_hours_it_lives_until_its_own_deadline(notif: Installation, hands: Hands) -> None:
    job = notif.send()  # three days
    short = notif.send("reset", **MAIL)  # an hour
    ends = []
    for _ in range(25):
        refs = hands.pick()
        hands.closings.close(throttle("resend", "429", 60, 60))
        ends.append(sorted(hands.handle(ref) for ref in refs))
        passed(notif, hands, HOUR)
    assert ends == [["ready", "ready"], ["expired", "ready"], *[["ready"]] * 23]
    assert (waiting(notif), notif.state(short)) == ([("ready", 0)], "expired")
    assert hands.turn() == ["delivered"]
    assert notif.one("SELECT attempts FROM core.delivery WHERE job_id = %s", job) == 1


def test_b50_a_long_closing_counts_nothing(notif: Installation, hands: Hands) -> None:
    """Closed for long, open, closed again: each refusal alike."""
    job = notif.send()
    for minutes in (5, 1, 5):
        (ref,) = hands.pick()
        hands.closings.close(throttle("resend", "429", minutes * 60, minutes * 60))
        assert hands.handle(ref) == "ready"
        for _ in range(minutes):
            assert hands.turn() == []
            passed(notif, hands, 60)
        assert waiting(notif) == [("ready", 0)]
    passed(notif, hands, 1)
    assert hands.turn() == ["delivered"]
    assert notif.one("SELECT attempts FROM core.delivery WHERE job_id = %s", job) == 1


def test_b51_five_attempts_with_three_refusals_before_each(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": fault} for _ in range(5) for fault in ("429", "429", "429", "500")])
    ends = []
    for _ in range(20):
        ends += hands.turn()
        passed(notif, hands, HOUR)
    assert ends == (["ready"] * 3 + ["retrying"]) * 4 + ["ready"] * 3 + ["dead"]
    assert notif.rows("SELECT cause, attempts FROM core.dead_letters") == [("attempts_spent", 5)]
    assert requests_of(notif, job) == 20
    assert hands.turn() == []


def test_b68_a_retry_long_overdue_is_not_skipped(notif: Installation, hands: Hands) -> None:
    """The relay was away for five hours."""
    job = notif.send()
    notif.sandbox.faults([{"fault": "500"}])
    assert hands.turn() == ["retrying"]
    passed(notif, hands, 5 * HOUR)
    assert hands.turn() == ["delivered"]
    assert notif.one("SELECT attempts FROM core.delivery WHERE job_id = %s", job) == 2


def test_b73_a_providers_429_is_waited_out_and_loses_nothing(notif: Installation, hands: Hands) -> None:
    """Five threads at once against a provider that takes two a second: its hint holds for all of them."""
    jobs = notif.send_many(6)
    notif.sandbox.limits(rate=2)

    def round_of_five() -> bool:
        notif.rows("UPDATE core.outbox SET due_at = now() WHERE state = 'ready'")
        with ThreadPoolExecutor(5) as threads:
            list(threads.map(hands.handle, hands.pick()))
        return not waiting(notif)

    eventually(round_of_five, what="all are sent")
    refused = [request for request in notif.sandbox.requests() if request["status"] == 429]
    assert 1 <= len(refused) <= 10, "each of the five at most once a second"
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]


def test_b82_an_age_is_counted_from_the_first_look_not_from_the_latest(notif: Installation, hands: Hands) -> None:
    """A kind that no worker here knows: an hour, then a letter, and no look after it."""
    notif.send()
    notif.rows("UPDATE core.outbox SET kind = 'order.new'")
    ends = []
    for _ in range(9):
        ends += hands.turn()
        passed(notif, hands, 600)
    assert ends == ["ready"] * 6 + ["dead"]
    assert notif.rows("SELECT cause, attempts FROM core.dead_letters") == [("unknown_kind", 0)]
