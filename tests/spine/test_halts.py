"""Closed and halted: what waits, what goes on, and how it ends. No job is dropped, and none spends an attempt."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from notif.adapters.resend import ResendProvider
from notif.closings import halt, throttle
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

MARKETING = "notif.email.marketing"
BAD_KEY = {"fault": "error", "status": 401, "name": "restricted_api_key"}
MAIL = {"to": "ann@example.test", "subject": "Hi", "text": "hello"}


def sent(notif: Installation) -> int:
    return len(notif.sandbox.requests())


def waiting(notif: Installation) -> list[Any]:
    """State, attempts and the start of the key's clock of what is in the outbox."""
    return notif.rows("SELECT state, attempts, key_since FROM core.outbox ORDER BY job_id")


def resume(notif: Installation, hands: Hands, domain: str = "") -> None:
    assert notif.app.upkeep.resume("resend", domain, [EMAIL, MARKETING], "ann")
    hands.clock_offset += 1.1  # what the worker remembers is too old now


def passed(notif: Installation, seconds: float) -> None:
    """Time passes, for rows and closings."""
    notif.rows("UPDATE core.outbox SET due_at = due_at - make_interval(secs => %s)", seconds)
    notif.rows(
        "UPDATE core.provider_state SET since = since - w, until = until - w, transactional_until = transactional_until - w "
        "FROM make_interval(secs => %s) w",
        seconds,
    )


def mail_from(
    notif: Installation, domain: str, tenant: uuid.UUID | None = None, kind: str = "email.message"
) -> uuid.UUID:
    return notif.send(kind, **{**MAIL, "from": f"shop@{domain}", "tenant": tenant or notif.tenant})


# ---- a bad key


def test_a_bad_key_halts_the_provider_and_resume_lets_everything_go(notif: Installation, hands: Hands) -> None:
    jobs = notif.send_many(5)
    refs = hands.pick()
    notif.sandbox.faults([BAD_KEY])
    assert [hands.handle(ref) for ref in refs] == ["halted"] * 5
    assert sent(notif) == 1
    assert waiting(notif) == [("halted", 0, None)] * 5
    later = notif.send()
    assert hands.pick() == []
    assert notif.rows("SELECT state, domain, until = 'infinity' FROM core.provider_state") == [("halted", "", True)]
    resume(notif, hands)
    assert hands.turn() == ["delivered"] * 6
    assert {mail["tags"]["job"] for mail in notif.mails()} == {str(job) for job in (*jobs, later)}
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]
    assert {request["key"] for request in notif.sandbox.requests()} == {f"{job}:{EMAIL}" for job in (*jobs, later)}
    assert notif.rows("SELECT who, action, target FROM core.audit") == [("ann", "resume", "resend")]


def test_a_key_that_is_really_bad_is_mended_by_a_restart(notif: Installation, hands: Hands) -> None:
    url = notif.env("notif_worker")["RESEND_API_URL"]
    broken = Hands(notif, ResendProvider("re_restricted_key", url))
    job = notif.send()
    assert broken.turn() == ["halted"]
    broken.close()
    assert notif.app.upkeep.resume("resend", "", [EMAIL], "ann")
    mended = Hands(notif)
    assert mended.turn() == ["delivered"]
    mended.close()
    assert len(notif.mails_of(job)) == 1


def test_a_halt_says_what_it_waits_for(notif: Installation, hands: Hands) -> None:
    halted = notif.send()
    notif.sandbox.faults([{**BAD_KEY, "message": "restricted"}])
    hands.turn()
    fresh = notif.send()
    (status,) = notif.app.queue.status(halted)
    assert (status.state, status.waits_for, status.attempts) == ("halted", "a person: notif resume", 0)
    assert status.history[-1]["note"] == "401 restricted_api_key: restricted"
    (status,) = notif.app.queue.status(fresh)
    assert (status.state, status.until) == ("ready", None)
    assert status.waits_for == "its provider, halted: 401 restricted_api_key: restricted"


def test_resumed_between_a_look_and_its_settle(notif: Installation, hands: Hands) -> None:
    """The worker remembers the halt, a person ends it, the worker settles: a halted row without a halt."""
    notif.send_many(2)
    first, second = hands.pick()
    notif.sandbox.faults([BAD_KEY])
    assert hands.handle(first) == "halted"
    assert notif.app.upkeep.resume("resend", "", [EMAIL], "ann")
    assert hands.handle(second) == "halted"
    hands.clock_offset += 1.1
    assert hands.turn() == ["delivered"]  # the first; nothing would ever look at the second
    assert notif.app.upkeep.wake_halted("resend", [MARKETING]) == 0
    assert notif.app.upkeep.wake_halted("resend", [EMAIL]) == 1
    assert hands.turn() == ["delivered"]


def test_anothers_halt_keeps_nobody_asleep(notif: Installation, hands: Hands) -> None:
    notif.sandbox.limits(unverified=["one.test", "two.test"])
    one, two = mail_from(notif, "one.test"), mail_from(notif, "two.test")
    assert hands.turn() == ["halted", "halted"]
    notif.rows("DELETE FROM core.provider_state WHERE domain = 'one.test'")
    assert notif.app.upkeep.wake_halted("resend", [EMAIL]) == 1
    due = notif.rows("SELECT job_id, due_at <= now() FROM core.outbox")
    assert dict(due) == {one: True, two: False}


def test_what_waits_for_a_living_halt_is_not_woken(notif: Installation, hands: Hands) -> None:
    notif.send()
    notif.sandbox.faults([BAD_KEY])
    hands.turn()
    assert notif.app.upkeep.wake_halted("resend", [EMAIL]) == 0
    assert waiting(notif) == [("halted", 0, None)]


def test_a_halt_keeps_the_mark_of_an_earlier_call(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "reset_after"}, BAD_KEY])
    assert hands.turn() == ["retrying"]
    notif.due()
    assert hands.turn() == ["halted"]
    assert notif.rows("SELECT attempts, ambiguous, key_since IS NOT NULL FROM core.outbox") == [(1, True, True)]
    resume(notif, hands)
    assert hands.turn() == ["delivered"]
    assert len(notif.mails_of(job)) == 1


# ---- an unverified domain


def test_an_unverified_domain_halts_that_domain_only(notif: Installation, hands: Hands) -> None:
    other = notif.add_tenant("Other")
    notif.sandbox.limits(unverified=["bad.test"])
    first, good = mail_from(notif, "bad.test"), mail_from(notif, "good.test", other)
    assert sorted(hands.turn()) == ["delivered", "halted"]
    second, more = mail_from(notif, "BAD.test"), mail_from(notif, "good.test", other)
    assert hands.turn() == ["delivered"]
    assert [len(notif.mails_of(job)) for job in (first, second, good, more)] == [0, 0, 1, 1]
    assert sent(notif) == 3
    assert waiting(notif) == [("halted", 0, None)] * 2
    (status,) = notif.app.queue.status(second)
    assert (status.state, status.waits_for) == ("halted", "a person: notif resume")
    assert "bad.test domain is not verified" in status.history[-1]["note"]
    notif.sandbox.limits(unverified=[])
    resume(notif, hands, "bad.test")
    assert hands.turn() == ["delivered", "delivered"]
    assert [len(notif.mails_of(job)) for job in (first, second)] == [1, 1]


def test_resuming_one_domain_leaves_the_other_halted(notif: Installation, hands: Hands) -> None:
    notif.sandbox.limits(unverified=["one.test", "two.test"])
    one, two = mail_from(notif, "one.test"), mail_from(notif, "two.test")
    assert hands.turn() == ["halted", "halted"]
    notif.sandbox.limits(unverified=["two.test"])
    resume(notif, hands, "one.test")
    assert hands.turn() == ["delivered"]
    assert (len(notif.mails_of(one)), notif.state(two)) == (1, "halted")
    assert notif.app.upkeep.resume("resend", "one.test", [EMAIL], "ann") is False


def test_a_job_of_a_halted_domain_waits_no_longer_than_its_age(notif: Installation, hands: Hands) -> None:
    notif.sandbox.limits(unverified=["bad.test"])
    job = mail_from(notif, "bad.test", kind="reset")
    assert hands.turn() == ["halted"]
    passed(notif, 3601)
    notif.rows("UPDATE core.outbox SET expires_at = expires_at - interval '3601 s'")
    assert hands.turn() == ["expired"]
    assert notif.state(job) == "expired"


# ---- 429


def test_a_429_holds_transactional_for_its_reset_and_marketing_for_all_of_it(notif: Installation, hands: Hands) -> None:
    jobs = [
        mail_from(notif, "acme.test"),
        mail_from(notif, "acme.test"),
        mail_from(notif, "acme.test", kind="newsletter"),
    ]
    hit, pushed = hands.pick()
    (news,) = hands.pick(MARKETING)
    headers = {"retry-after": "30", "ratelimit-reset": "4"}
    notif.sandbox.faults([{"fault": "429", "headers": headers, "message": "slow down"}])
    assert [hands.handle(ref) for ref in (hit, pushed, news)] == ["ready"] * 3
    assert sent(notif) == 1
    assert waiting(notif) == [("ready", 0, None)] * 3
    waits = "SELECT queue, round(extract(epoch FROM due_at - now()))::int FROM core.outbox ORDER BY job_id"
    assert notif.rows(waits) == [(EMAIL, 4), (EMAIL, 4), (MARKETING, 30)]
    (status,) = notif.app.queue.status(jobs[1])
    assert status.waits_for == "provider closed: 429 rate_limit_exceeded: slow down"
    assert status.until is not None
    passed(notif, 4)
    hands.clock_offset += 4
    assert hands.turn() == ["delivered", "delivered"]
    notif.due()
    assert hands.pick(MARKETING) == []  # still closed for marketing
    passed(notif, 26)
    hands.clock_offset += 26
    notif.due()
    assert hands.turn(MARKETING) == ["delivered"]
    assert notif.rows("SELECT DISTINCT verdict, attempts FROM core.delivery") == [("delivered", 1)]


def test_while_closed_nothing_new_is_pushed(notif: Installation, hands: Hands) -> None:
    notif.app.closings.close(throttle("resend", "429", 30, 4))
    jobs = [mail_from(notif, "acme.test"), mail_from(notif, "acme.test", kind="newsletter")]
    assert (hands.pick(), hands.pick(MARKETING)) == ([], [])
    statuses = [notif.app.queue.status(job)[0] for job in jobs]
    assert [status.waits_for for status in statuses] == ["its provider, closed: 429"] * 2
    assert statuses[0].until is not None
    assert statuses[1].until is not None
    assert (statuses[1].until - statuses[0].until).total_seconds() == pytest.approx(26, abs=1)


def test_a_closing_only_grows(notif: Installation) -> None:
    for seconds, reset in ((30, 4), (10, 9), (2, 1)):
        notif.app.closings.close(throttle("resend", "429", seconds, reset))
    (closing,) = notif.app.closings.read()
    assert closing.seconds == pytest.approx(30, abs=1)
    assert closing.transactional_seconds == pytest.approx(9, abs=1)
    notif.app.closings.close(halt("resend", "", "bad key"))
    notif.app.closings.close(throttle("resend", "429", 5, 5))
    (closing,) = notif.app.closings.read()
    assert (closing.state, closing.reason, closing.seconds) == ("halted", "bad key", None)


def test_resuming_a_closing_lets_what_waited_go_at_once(notif: Installation, hands: Hands) -> None:
    notif.send()
    notif.sandbox.faults([{"fault": "429", "seconds": 50}])
    assert hands.turn() == ["ready"]
    scheduled = notif.envelope()
    notif.app.queue.schedule(EMAIL, scheduled, datetime(2035, 1, 1, tzinfo=UTC))
    resume(notif, hands)
    assert hands.turn() == ["delivered"]
    assert notif.state(scheduled.job_id) == "scheduled"


# ---- quotas


@pytest.mark.parametrize(
    ("name", "until"),
    [
        ("daily_quota_exceeded", datetime(2027, 12, 11, tzinfo=UTC)),
        ("monthly_quota_exceeded", datetime(2028, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_quota_closes_the_provider_until_it_begins_anew(notif: Installation, name: str, until: datetime) -> None:
    noon = datetime(2027, 12, 10, 12, 0, tzinfo=UTC)
    url = notif.env("notif_worker")["RESEND_API_URL"]
    hands = Hands(notif, ResendProvider("re_sandbox", url, clock=lambda: noon))
    hands.now = lambda: noon
    jobs = notif.send_many(3)
    refs = hands.pick()
    news = mail_from(notif, "acme.test", kind="newsletter")
    notif.sandbox.faults([{"fault": "429", "name": name, "headers": {"retry-after": "1"}}])
    assert [hands.handle(ref) for ref in refs] == ["ready"] * 3
    assert sent(notif) == 1
    assert (hands.pick(), hands.pick(MARKETING)) == ([], [])
    assert waiting(notif) == [("ready", 0, None)] * 4
    (closing,) = notif.app.closings.read()
    expected = (until - noon).total_seconds()
    assert (closing.state, closing.domain) == ("closed", "")
    assert closing.seconds == closing.transactional_seconds == pytest.approx(expected, abs=2)
    (incident,) = notif.app.incidents.take()
    assert (incident.alert.title, name in incident.alert.detail) == ("resend is closed", True)
    passed(notif, expected)
    hands.clock_offset += expected
    assert hands.turn() == ["delivered"] * 3
    assert hands.turn(MARKETING) == ["delivered"]
    assert len(notif.mails()) == len({*jobs, news})
    hands.close()
