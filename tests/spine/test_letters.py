"""Putting a dead letter back: `core.replay` through the LettersPort."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from notif.errors import Refused
from tests.kit import EMAIL, Installation, eventually
from tests.spine.hands import Hands
from tests.spine.letters import REFUSAL, aged, audit, calls, letter_of, refused, replay, unclear


def test_after_certain_refusals_the_same_request_under_the_next_key(notif: Installation, hands: Hands) -> None:
    job, letter = refused(notif, hands)
    assert (letter.outcome, letter.attempts) == ("failed", 1)
    assert replay(notif, letter) == job
    assert notif.rows("SELECT attempts, state FROM core.outbox WHERE job_id = %s", job) == [(0, "ready")]
    assert hands.turn() == ["delivered"]
    (first, second) = calls(notif)
    assert (first[0], second[0]) == (f"{job}:{EMAIL}", f"{job}:{EMAIL}:1")
    assert first[1] == second[1]


def test_after_a_call_of_unknown_outcome_the_same_request_under_the_same_key(notif: Installation, hands: Hands) -> None:
    job, letter = unclear(notif, hands)
    assert (letter.outcome, letter.attempts) == ("unknown", 2)
    replay(notif, letter)
    assert hands.turn() == ["delivered"]
    assert set(calls(notif)) == {calls(notif)[0]}
    assert calls(notif)[0][0] == f"{job}:{EMAIL}"
    assert len(notif.mails_of(job)) == 1


def test_a_mail_that_had_arrived_after_all_arrives_once(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "reset_after"}, REFUSAL])
    hands.turn()
    notif.due()
    hands.turn()
    replay(notif, letter_of(notif, job))
    assert hands.turn() == ["delivered"]
    assert len(notif.mails_of(job)) == 1


def test_attempts_begin_anew(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "500", "times": 10}])
    for _ in range(4):
        assert hands.turn() == ["retrying"]
        notif.due()
    assert hands.turn() == ["dead"]
    replay(notif, letter_of(notif, job))
    for _ in range(4):
        assert hands.turn() == ["retrying"]
        notif.due()
    assert hands.turn() == ["dead"]
    assert (letter_of(notif, job).attempts, len(set(calls(notif))), len(calls(notif))) == (5, 1, 10)


def test_its_age_begins_anew(notif: Installation, hands: Hands) -> None:
    job, letter = refused(notif, hands)
    notif.rows(
        "UPDATE core.dead_letters SET snapshot = jsonb_set(snapshot, '{expires_at}', to_jsonb(now() - interval '1 s'))"
    )
    replay(notif, letter)
    assert notif.one("SELECT expires_at - due_at = interval '3 days' FROM core.outbox WHERE job_id = %s", job) is True
    assert hands.turn() == ["delivered"]


def test_its_generation_goes_on(notif: Installation, hands: Hands) -> None:
    """Else a reference of before would fit the row that is put back."""
    job = notif.send()
    (ref,) = hands.pick()
    notif.sandbox.faults([REFUSAL])
    hands.handle(ref)
    before = notif.one("SELECT (snapshot ->> 'generation')::bigint FROM core.dead_letters")
    replay(notif, letter_of(notif, job))
    assert notif.one("SELECT generation FROM core.outbox") > before
    assert hands.handle(ref) == "gone"


def test_its_history_tells_it(notif: Installation, hands: Hands) -> None:
    job, letter = refused(notif, hands)
    replay(notif, letter)
    hands.turn()
    history = notif.one("SELECT history FROM core.delivery WHERE job_id = %s", job)
    states = ["ready", "pushed", "claimed", "dead", "ready", "pushed", "claimed", "delivered"]
    assert [move["state"] for move in history] == states
    assert history[4]["note"] == "replayed by ann"


def test_without_a_living_key_only_with_accept(notif: Installation, hands: Hands) -> None:
    job, letter = unclear(notif, hands)
    aged(notif)
    with pytest.raises(Refused, match="no living key protects a repeat"):
        replay(notif, letter)
    assert notif.app.letters.get(letter.id).status == "pending_review"
    replay(notif, letter, accept=True)
    query = "SELECT key_number, key_since, ambiguous FROM core.outbox WHERE job_id = %s"
    assert notif.rows(query, job) == [(1, None, True)]  # the next key, its clock not started; the mark stays
    assert hands.turn() == ["delivered"]
    assert [key for key, _ in calls(notif)] == [f"{job}:{EMAIL}"] * 2 + [f"{job}:{EMAIL}:1"]
    assert audit(notif)[0][3] == "possible duplicate accepted"


def test_without_provider_keys_only_with_accept(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    hands.keyed = False
    notif.sandbox.faults([{"fault": "500"}])
    assert hands.turn() == ["dead"]
    letter = letter_of(notif, job)
    assert (letter.cause, letter.outcome) == ("unrepeatable", "unknown")
    with pytest.raises(Refused, match="--accept-possible-duplicate"):
        replay(notif, letter, None)
    replay(notif, letter, None, accept=True)
    assert hands.turn() == ["delivered"]


def test_the_mark_stays_after_an_accepted_replay(notif: Installation, hands: Hands) -> None:
    job, letter = unclear(notif, hands)
    aged(notif)
    replay(notif, letter, accept=True)
    notif.sandbox.faults([REFUSAL])
    assert hands.turn() == ["dead"]
    again = letter_of(notif, job)
    assert (again.id != letter.id, again.outcome) == (True, "unknown")
    assert notif.app.queue.cancel(job) == {EMAIL: False}


def test_refused_while_a_row_of_its_id_is_in_the_outbox(notif: Installation, hands: Hands) -> None:
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    notif.sandbox.faults([REFUSAL])
    hands.turn()
    notif.app.queue.publish(EMAIL, envelope)
    letter = letter_of(notif, envelope.job_id)
    with pytest.raises(Refused, match="its job is in the outbox again"):
        replay(notif, letter)
    assert hands.turn() == ["duplicate"]
    replay(notif, letter)
    assert hands.turn() == ["delivered"]


def test_refused_if_its_job_is_published_at_the_same_moment(notif: Installation, hands: Hands) -> None:
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    notif.sandbox.faults([REFUSAL])
    hands.turn()
    letter = letter_of(notif, envelope.job_id)
    waiting = "SELECT true FROM pg_stat_activity WHERE query LIKE 'SELECT core.replay%' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        with notif.app.maintenance.transaction() as publisher:
            notif.app.queue.publish(EMAIL, envelope, session=publisher)
            answer = pool.submit(replay, notif, letter)
            eventually(lambda: notif.admin(waiting), what="the replay waits for the publisher")
        with pytest.raises(Refused, match="published again this very moment"):
            answer.result(10)
    assert notif.app.letters.get(letter.id).status == "pending_review"


def test_a_key_that_may_be_used_again_is_enough_for_a_kind_that_says_resend(notif: Installation, hands: Hands) -> None:
    message = {"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Code", "text": "123456"}
    job = notif.send("otp", **message)
    notif.sandbox.faults([{"fault": "500"}, REFUSAL])
    hands.turn()
    notif.due()
    assert hands.turn() == ["dead"]
    aged(notif)
    replay(notif, letter_of(notif, job))
    assert hands.turn() == ["delivered"]
