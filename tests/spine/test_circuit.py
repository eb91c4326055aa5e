"""A failing provider is not a failing job: when its circuit opens, how it probes, what ends it, and that no job pays for it."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from notif.adapters.postgres.ledger import CLAIM
from notif.adapters.postgres.relay import PostgresCircuits
from notif.adapters.resend import ResendProvider
from notif.closings import halt, throttle
from notif.ports import Incident, Stop
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

MARKETING = "notif.email.marketing"
DOWN = [{"fault": "500", "times": None}]
STATE = "SELECT state, domain, round(extract(epoch FROM probe_at - now()))::int FROM core.provider_state"


@pytest.fixture
def other(notif: Installation, hands: Hands) -> Iterator[Hands]:
    """A second process."""
    made = Hands(notif, hands.provider)
    yield made
    made.app.close()


def sent(notif: Installation) -> int:
    return len(notif.sandbox.requests())


def opened(notif: Installation, hands: Hands, jobs: int = 5) -> list[uuid.UUID]:
    """An open circuit, and the jobs that opened it."""
    ids = notif.send_many(jobs)
    notif.sandbox.faults(DOWN)
    assert hands.turn() == ["retrying"] * 4 + ["ready"] * (jobs - 4)
    return ids


def probe_due(notif: Installation, *hands: Hands) -> None:
    """Time passes until the next probe, and every deferred row is due."""
    notif.rows("UPDATE core.provider_state SET probe_at = now() - interval '1 ms' WHERE probe_at IS NOT NULL")
    notif.due()
    for each in hands:
        each.closings.refresh()


def incidents(notif: Installation) -> list[Incident]:
    return notif.app.incidents.take()


# ---- it opens


@pytest.mark.parametrize("fault", ["500", "html_502", "reset_before", "reset_after", "truncated"])
def test_five_failures_over_five_jobs_open_it_and_cost_nothing(notif: Installation, hands: Hands, fault: str) -> None:
    notif.send_many(7)
    refs = hands.pick()
    notif.sandbox.faults([{"fault": fault, "times": None}])
    assert [hands.handle(ref) for ref in refs] == ["retrying"] * 4 + ["ready"] * 3
    assert sent(notif) == 5
    assert notif.rows(STATE) == [("circuit", "", 2)]
    called = (
        "SELECT state, attempts, ambiguous, key_since IS NOT NULL, count(*)::int FROM core.outbox GROUP BY 1, 2, 3, 4"
    )
    assert sorted(notif.rows(called)) == [("ready", 0, False, False, 2), ("ready", 0, True, True, 5)]
    notif.due()
    assert (hands.pick(), hands.pick(MARKETING)) == ([], [])


def test_a_provider_that_cant_be_reached_opens_it_too(notif: Installation) -> None:
    nowhere = Hands(notif, ResendProvider("re_sandbox", "http://127.0.0.1:9"))
    notif.send_many(6)
    assert nowhere.turn() == ["ready"] * 6
    assert notif.rows(STATE) == [("circuit", "", 2)]
    assert notif.rows("SELECT DISTINCT attempts, ambiguous FROM core.outbox") == [(0, False)]
    nowhere.close()


def test_one_job_alone_never_opens_it(notif: Installation, hands: Hands) -> None:
    notif.send()
    notif.sandbox.faults(DOWN)
    became = []
    for _ in range(5):
        became += hands.turn()
        notif.due()
    assert became == ["retrying"] * 4 + ["dead"]
    assert notif.rows(STATE) == []


def test_five_failures_of_two_jobs_dont_open_it_and_the_third_job_does(notif: Installation, hands: Hands) -> None:
    notif.send_many(2)
    notif.sandbox.faults(DOWN)
    for _ in range(3):
        assert hands.turn() == ["retrying"] * 2
        notif.due()
    assert notif.rows(STATE) == []
    notif.rows("UPDATE core.outbox SET due_at = now() + interval '1 h'")
    notif.send()
    assert hands.turn() == ["ready"]
    assert notif.rows(STATE) == [("circuit", "", 2)]
    # what failed last is given back: each job's latest attempt, whose row is as it was then
    assert notif.rows("SELECT attempts, due_at <= now() FROM core.outbox ORDER BY attempts") == [
        (0, False),
        (2, True),
        (2, True),
    ]


@pytest.mark.parametrize(
    "answer", [{"fault": "error", "status": 422, "name": "invalid_parameter"}, {"fault": "latency", "seconds": 0}]
)
def test_any_answer_starts_the_count_anew(notif: Installation, hands: Hands, answer: dict[str, Any]) -> None:
    notif.send_many(9)
    notif.sandbox.faults([{"fault": "500", "times": 4}, answer, {"fault": "500", "times": 4}])
    became = hands.turn()
    assert (became[:4], became[5:]) == (["retrying"] * 4, ["retrying"] * 4)
    assert notif.rows(STATE) == []


# ---- two processes


def test_each_process_counts_for_itself_and_the_opening_holds_for_all(
    notif: Installation, hands: Hands, other: Hands
) -> None:
    notif.send_many(9)
    refs = hands.pick()
    notif.sandbox.faults(DOWN)
    assert [hands.handle(ref) for ref in refs[:4]] == ["retrying"] * 4
    assert [other.handle(ref) for ref in refs[4:7]] == ["retrying"] * 3
    assert notif.rows(STATE) == []
    assert hands.handle(refs[7]) == "ready"
    other.closings.refresh()
    assert other.handle(refs[8]) == "ready"
    assert sent(notif) == 8
    spent = "SELECT attempts, count(*)::int FROM core.outbox GROUP BY 1 ORDER BY 1"
    assert notif.rows(spent) == [(0, 6), (1, 3)]
    other.circuit.refresh()
    assert notif.rows(spent) == [(0, 9)]


def test_a_call_that_was_under_way_when_another_process_opened_it_costs_no_attempt(
    notif: Installation, hands: Hands, other: Hands
) -> None:
    (job,) = notif.send_many(1, email="slow@example.test")
    (ref,) = other.pick()
    notif.sandbox.faults([{"fault": "hold", "match": {"to": "slow@example.test"}}, *DOWN])
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(other.handle, ref)
        notif.sandbox.wait_for_held()
        notif.send_many(5)
        hands.turn()
        other.closings.refresh()
        notif.sandbox.reset()  # the held request ends without an answer
        assert late.result(30) == "ready"
    assert notif.rows("SELECT attempts, ambiguous FROM core.outbox WHERE job_id = %s", job) == [(0, True)]


# ---- it probes


def test_one_probe_at_a_time_after_2_s_doubling_to_20(notif: Installation, hands: Hands) -> None:
    opened(notif, hands, 8)
    for nth, wait in enumerate((4, 8, 16, 20, 20, 20), 1):
        probe_due(notif, hands)
        refs = hands.pick()
        assert len(refs) == 1
        assert hands.pick() == []
        assert [hands.handle(ref) for ref in refs] == ["ready"]
        assert (sent(notif), notif.rows(STATE)) == (5 + nth, [("circuit", "", wait)])
    assert notif.rows("SELECT DISTINCT attempts FROM core.outbox") == [(0,)]


def test_a_probe_that_is_accepted_lets_everything_go(notif: Installation, hands: Hands) -> None:
    jobs = opened(notif, hands, 8)
    notif.sandbox.faults([])
    assert hands.pick() == []
    probe_due(notif, hands)
    assert hands.turn() == ["delivered"]
    assert notif.rows(STATE) == []
    assert hands.turn() == ["delivered"] * 7
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]


def test_both_lanes_wait_and_either_may_probe(notif: Installation, hands: Hands, other: Hands) -> None:
    opened(notif, hands)
    news = notif.send(
        "newsletter", **{"from": "a@acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}
    )
    assert hands.pick(MARKETING) == []
    probe_due(notif, hands, other)
    (mail,), (marketing,) = hands.pick(), hands.pick(MARKETING)
    notif.sandbox.faults([{"fault": "hold"}])
    before = sent(notif)
    with ThreadPoolExecutor(1) as thread:
        probing = thread.submit(hands.handle, marketing)
        notif.sandbox.wait_for_held()
        assert other.handle(mail) == "ready"  # somebody else is the probe
        assert (hands.pick(), sent(notif)) == ([], before + 1)
        notif.sandbox.release()
        assert probing.result(30) == "delivered"
    assert len(notif.mails_of(news)) == 1


def test_of_two_claims_at_the_same_moment_one_is_the_probe(notif: Installation, hands: Hands) -> None:
    opened(notif, hands)
    notif.send("newsletter", **{"from": "a@acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"})
    probe_due(notif, hands)
    (first,), (second,) = hands.pick(), hands.pick(MARKETING)
    terms = hands.terms()
    arguments = (first.job_id, EMAIL, first.generation, terms.provider, terms.key_lifetime, terms.lease, None)
    with psycopg.connect(notif.servers.url("notif_worker", notif.database)) as slow, ThreadPoolExecutor(1) as thread:
        assert slow.execute(CLAIM.encode(), arguments).fetchone()[-1] is True  # type: ignore[index]
        waits = thread.submit(hands.ledger.claim, second, hands.terms(MARKETING), None)
        notif.rows("SELECT pg_sleep(0.2)")
        slow.commit()
        stop = waits.result(30)
    assert isinstance(stop, Stop)
    assert stop.verdict == "circuit"
    assert stop.seconds == pytest.approx(6, abs=1)  # the lease


def test_a_probe_whose_worker_died_is_followed_by_another_and_its_late_answer_changes_nothing(
    notif: Installation, hands: Hands
) -> None:
    opened(notif, hands)
    probe_due(notif, hands)
    (ref,) = hands.pick()
    dead = hands.ledger.claim(ref, hands.terms(), None)
    assert not isinstance(dead, Stop)
    assert dead.probe
    probe_due(notif, hands)
    (ref,) = hands.pick()
    hands.handle(ref)
    assert notif.rows(STATE) == [("circuit", "", 4)]
    for outcome in ("failed", "none", "accepted", "answered"):
        PostgresCircuits(hands.database).probed("resend", dead.generation, outcome, "late")
    assert notif.rows(STATE) == [("circuit", "", 4)]


def test_a_probe_that_makes_no_call_leaves_it_to_the_next(notif: Installation, hands: Hands) -> None:
    opened(notif, hands)
    probe_due(notif, hands)
    (ref,) = hands.pick()
    notif.rows("UPDATE core.outbox SET request = NULL")
    real = hands.ledger.claim

    def claim(*arguments: Any) -> Any:
        """And then its host sleeps: too little of the lease is left."""
        claimed = real(*arguments)
        hands.clock_offset += 10
        return claimed

    hands.ledger.claim = claim  # type: ignore[method-assign, assignment]
    assert (hands.handle(ref), sent(notif)) == ("ready", 5)
    hands.ledger.claim = real  # type: ignore[method-assign]
    assert notif.rows(STATE) == [("circuit", "", 0)]
    notif.sandbox.faults([])
    notif.due()
    assert hands.turn() == ["delivered"]


def test_a_probe_that_is_refused_with_certainty_ends_it_as_well(notif: Installation, hands: Hands) -> None:
    opened(notif, hands)
    probe_due(notif, hands)
    notif.sandbox.faults([{"fault": "429", "seconds": 9}])
    assert hands.turn() == ["ready"]
    assert notif.rows("SELECT state, round(extract(epoch FROM until - now()))::int FROM core.provider_state") == [
        ("closed", 9)
    ]


# ---- an hour


def test_an_hour_of_outage_costs_no_attempt_and_no_job(notif: Installation, hands: Hands) -> None:
    jobs = opened(notif, hands, 20)
    mail = {"from": "a@acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}
    jobs += notif.send_many(10, "newsletter", **mail)
    faults = ["500", "html_502", "reset_before", "reset_after", "truncated"]
    for minute in range(60):
        notif.sandbox.faults([{"fault": faults[minute % 5], "times": None}])
        probe_due(notif, hands)
        assert set(hands.turn() + hands.turn(MARKETING)) == {"ready"}
    assert notif.rows("SELECT DISTINCT attempts FROM core.outbox") == [(0,)]
    assert notif.one("SELECT count(*) FROM core.dead_letters") == 0
    assert sent(notif) == 5 + 60
    notif.sandbox.faults([])
    probe_due(notif, hands)
    assert hands.turn() == ["delivered"]
    assert hands.turn() + hands.turn(MARKETING) == ["delivered"] * 29
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]


def test_without_keys_an_unknown_outcome_is_for_a_person(notif: Installation, hands: Hands) -> None:
    hands.keyed = False
    notif.send_many(6)
    notif.sandbox.faults(DOWN)
    assert hands.turn() == ["dead"] * 5 + ["ready"]
    assert notif.rows("SELECT DISTINCT cause, outcome FROM core.dead_letters") == [("unrepeatable", "unknown")]


# ---- what a person sees and does


def test_it_says_what_a_job_waits_for_and_until_when(notif: Installation, hands: Hands) -> None:
    (job, *_) = opened(notif, hands)
    notif.due()
    (status,) = notif.app.queue.status(job)
    assert (status.state, status.attempts) == ("ready", 0)
    assert status.waits_for == "its provider, circuit open: 500 application_error: sandbox fault 500"
    assert status.until == notif.one("SELECT probe_at FROM core.provider_state")


def test_a_person_ends_it(notif: Installation, hands: Hands) -> None:
    opened(notif, hands)
    notif.sandbox.faults([])
    assert notif.app.upkeep.resume("resend", "", [EMAIL, MARKETING], "ann")
    hands.closings.refresh()
    assert hands.turn() == ["delivered"] * 5


def test_it_alerts_after_a_minute_and_until_it_ends(notif: Installation, hands: Hands) -> None:
    opened(notif, hands)
    assert incidents(notif) == []
    notif.rows("UPDATE core.provider_state SET since = since - interval '61 s'")
    (incident,) = incidents(notif)
    assert (incident.alert.key, incident.alert.kind) == ("circuit:resend", "circuit")
    assert incident.alert.title == "resend keeps failing, its circuit is open"
    assert "500 application_error" in incident.alert.detail
    notif.app.incidents.told("circuit:resend", "1")
    notif.sandbox.faults([])
    probe_due(notif, hands)
    assert hands.turn() == ["delivered"]
    (incident,) = incidents(notif)
    assert incident.gone


def test_a_halt_is_stronger_than_a_circuit_and_a_429_is_not(notif: Installation, hands: Hands) -> None:
    opened(notif, hands)
    notif.app.closings.close(throttle("resend", "429", 30, 30))
    assert notif.rows(STATE) == [("circuit", "", 2)]
    notif.app.closings.close(halt("resend", "", "bad key"))
    assert notif.rows(STATE) == [("halted", "", 60)]
    assert PostgresCircuits(hands.database).open("resend", "500") is False
    assert notif.rows(STATE) == [("halted", "", 60)]


@pytest.mark.parametrize("fault", ["500", "hang"])
def test_many_failures_at_once_open_it_once_and_are_all_given_back(
    notif: Installation, hands: Hands, fault: str
) -> None:
    notif.send_many(8)
    refs = hands.pick()
    notif.sandbox.faults([{"fault": fault, "times": None}])
    together = threading.Barrier(8)

    def handle(number: int) -> str:
        together.wait(10)
        return hands.handle(refs[number])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(handle, range(8)))
    assert notif.rows("SELECT state, attempts, count(*)::int FROM core.outbox GROUP BY 1, 2") == [("ready", 0, 8)]
