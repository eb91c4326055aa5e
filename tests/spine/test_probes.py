"""Halts end by themselves once the trouble is mended, and what expires ends although its provider takes no request."""

import uuid
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from notif.closings import halt, throttle
from tests.kit import EMAIL, Installation
from tests.protocol.stage import CLOCK, EPOCH
from tests.servers import Servers, new_database
from tests.spine.hands import Hands

MARKETING = "notif.email.marketing"
BAD_KEY = {"fault": "error", "status": 401, "name": "restricted_api_key", "times": None}
MAIL = {"to": "ann@example.test", "subject": "Hi", "text": "hello"}
STATE = (
    "SELECT state, domain, round(extract(epoch FROM probe_at - now()))::int FROM core.provider_state ORDER BY domain"
)


def mail_from(notif: Installation, domain: str, kind: str = "email.message") -> uuid.UUID:
    return notif.send(kind, **{**MAIL, "from": f"shop@{domain}"})


def sent(notif: Installation) -> int:
    return len(notif.sandbox.requests())


def wake(notif: Installation) -> int:
    return notif.app.upkeep.wake_halted("resend", [EMAIL, MARKETING])


def minute(notif: Installation, *hands: Hands) -> None:
    """The minute until the next probe is over."""
    notif.rows("UPDATE core.provider_state SET probe_at = now() - interval '1 ms'")
    for each in hands:
        each.closings.refresh()


# ---- a halted provider probes once a minute


def test_a_mended_key_lets_mail_go_on_by_itself(notif: Installation, hands: Hands) -> None:
    jobs = notif.send_many(4)
    notif.sandbox.faults([BAD_KEY])
    assert hands.turn() == ["halted"] * 4
    assert (sent(notif), notif.rows(STATE)) == (1, [("halted", "", 60)])
    for nth in (2, 3):
        assert (wake(notif), hands.pick()) == (0, [])
        minute(notif, hands)
        assert (wake(notif), wake(notif)) == (1, 0)
        assert hands.turn() == ["halted"]
        assert (sent(notif), notif.rows(STATE)) == (nth, [("halted", "", 60)])
    notif.sandbox.faults([])
    minute(notif, hands)
    assert wake(notif) == 1
    assert hands.turn() == ["delivered"]
    assert notif.rows(STATE) == []
    assert wake(notif) == 3
    assert hands.turn() == ["delivered"] * 3
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]


def test_a_new_job_may_be_the_probe(notif: Installation, hands: Hands) -> None:
    notif.app.closings.close(halt("resend", "", "bad key"))
    hands.closings.refresh()
    notif.send_many(3)
    assert hands.pick() == []
    minute(notif, hands)
    assert hands.turn() == ["delivered"]
    assert hands.turn() == ["delivered"] * 2


def test_a_probe_that_says_nothing_of_the_key_leaves_the_halt(notif: Installation, hands: Hands) -> None:
    notif.app.closings.close(halt("resend", "", "bad key"))
    notif.send_many(3)
    for fault, became in (("500", "retrying"), ("429", "ready"), ("reset_before", "retrying")):
        minute(notif, hands)
        notif.sandbox.faults([{"fault": fault}])
        (ref,) = hands.pick()
        assert hands.handle(ref) in {became, "ready"}
        assert notif.rows(STATE) == [("halted", "", 60)]
    assert notif.rows("SELECT DISTINCT attempts FROM core.outbox") == [(0,)]


def test_a_verified_domain_goes_on_by_itself(notif: Installation, hands: Hands) -> None:
    notif.sandbox.limits(unverified=["bad.test", "worse.test"])
    bad = [mail_from(notif, "bad.test") for _ in range(3)]
    mail_from(notif, "worse.test")
    assert hands.turn() == ["halted"] * 4
    notif.sandbox.limits(unverified=["worse.test"])
    minute(notif, hands)
    assert wake(notif) == 2
    assert sorted(hands.turn()) == ["delivered", "halted"]
    assert notif.rows(STATE) == [("halted", "worse.test", 60)]
    assert wake(notif) == 2
    assert hands.turn() == ["delivered"] * 2
    assert [len(notif.mails_of(job)) for job in bad] == [1, 1, 1]


def test_when_a_domains_probe_is_due_its_rows_that_are_not_it_are_halted_again(
    notif: Installation, hands: Hands
) -> None:
    notif.sandbox.limits(unverified=["bad.test"])
    mail_from(notif, "bad.test")
    assert hands.turn() == ["halted"]
    for _ in range(3):
        mail_from(notif, "bad.test")
    minute(notif, hands)
    assert hands.turn() == ["halted"] * 3
    assert sent(notif) == 2


# ---- the age of what waits


@pytest.fixture(params=["halted", "closed", "circuit"])
def blocked(request: pytest.FixtureRequest, notif: Installation, hands: Hands) -> str:
    """The provider takes no request."""
    state: str = request.param
    closing: dict[str, Any] = {"halted": halt("resend", "", "bad key"), "closed": throttle("resend", "quota", 9e6, 9e6)}
    if state == "circuit":
        notif.rows("SELECT core.open_circuit('resend', '500')")
        notif.rows("UPDATE core.provider_state SET probe_at = now() + interval '1 h'")
    else:
        notif.app.closings.close(closing[state])
    hands.closings.refresh()
    return state


BACKLOG = f"""
INSERT INTO core.outbox (job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, data, schema_hash, content_hash,
  sender_domain, expiry, fence_ttl, resend_unknown, state, generation, due_at, ready_at, expires_at)
SELECT gen_random_uuid(), 'q', 'q', '{UUID(int=1)}', '{UUID(int=1)}', 'c', 'k', '{{}}', '', '',
  '', 'expired', '7 d', false, 'ready', n, at, at, CASE n WHEN 1100 THEN at + interval '1 s' ELSE 'infinity' END
FROM (SELECT n, '{EPOCH}'::timestamptz + n * interval '6 s' AS at FROM generate_series(1, 1200) n) r
"""
"""1,200 jobs over two hours; the 1,100th waits for a second only."""


def expire(notif: Installation, *jobs: uuid.UUID) -> None:
    notif.rows("UPDATE core.outbox SET expires_at = now() - interval '1 s' WHERE job_id = ANY (%s)", list(jobs))


def test_what_expires_ends_although_the_provider_takes_no_request(
    notif: Installation, hands: Hands, blocked: str
) -> None:
    old, young = mail_from(notif, "acme.test", "reset"), mail_from(notif, "acme.test", "reset")
    assert hands.pick() == [], blocked
    expire(notif, old)
    assert hands.turn() == ["expired"]
    assert (notif.state(old), notif.state(young), hands.pick()) == ("expired", "ready", [])
    assert sent(notif) == 0


def test_what_was_halted_ends_at_its_age_under_a_halt(notif: Installation, hands: Hands) -> None:
    job = mail_from(notif, "acme.test", "reset")
    notif.sandbox.faults([BAD_KEY])
    assert hands.turn() == ["halted"]
    notif.rows("UPDATE core.outbox SET due_at = now() - interval '1 s', expires_at = now() - interval '1 s'")
    assert hands.turn() == ["expired"]
    assert notif.state(job) == "expired"
    assert notif.rows(STATE) == [("halted", "", 60)]


def test_with_the_mark_it_is_a_letter_and_so_is_what_may_not_be_dropped(
    notif: Installation, hands: Hands, blocked: str
) -> None:
    del blocked
    marked, precious = mail_from(notif, "acme.test", "reset"), mail_from(notif, "acme.test")
    notif.rows("UPDATE core.outbox SET ambiguous = true WHERE job_id = %s", marked)
    expire(notif, marked, precious)
    assert hands.turn() == ["dead", "dead"]
    letters = notif.rows("SELECT cause, outcome FROM core.dead_letters ORDER BY cause")
    assert letters == [("expired", "unknown"), ("too_late", "failed")]


def test_what_was_out_when_it_closed_ends_too(notif: Installation, hands: Hands, blocked: str) -> None:
    del blocked
    job = mail_from(notif, "acme.test", "reset")
    notif.rows("UPDATE core.outbox SET state = 'pushed', due_at = now() - interval '1 s'")
    assert hands.pick() == []
    expire(notif, job)
    assert hands.turn() == ["expired"]


def test_a_short_age_behind_many_long_ones_ends_within_a_minute(servers: Servers) -> None:
    """The place from which a relay looks goes from the oldest to the newest, by the clock."""
    database = new_database(servers)
    with psycopg.connect(servers.url("notif_owner", database), autocommit=True) as owner:
        owner.execute(CLOCK)
        owner.execute(BACKLOG)
        found = []
        for second in range(60):
            moment = EPOCH + timedelta(seconds=7200 + second)
            owner.execute("SELECT set_config('notif.test_clock', %s, false)", (moment.isoformat(),))
            found.append(len(owner.execute("SELECT core.expired('q', '-infinity')").fetchall()))
    assert (found[0], max(found)) == (0, 1)
