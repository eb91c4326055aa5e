"""One job's way, moved step by step: the kinds of ends, and what each leaves behind."""

import uuid
from typing import Any

from notif.ports import Settlement
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands


def end(notif: Installation, job: uuid.UUID) -> Any:
    return notif.rows("SELECT verdict, attempts, reason FROM core.delivery WHERE job_id = %s", job)


def fences(notif: Installation, job: uuid.UUID) -> Any:
    return notif.one("SELECT count(*) FROM core.processed_job WHERE job_id = %s", job)


def letter(notif: Installation, job: uuid.UUID) -> Any:
    found = notif.rows("SELECT cause, outcome, attempts, last_error FROM core.dead_letters WHERE job_id = %s", job)
    return found[0] if found else None


def test_delivered(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    assert hands.turn() == ["delivered"]
    (mail,) = notif.mails()
    assert mail["tags"] == {"job": str(job), "n": "0"}
    assert mail["key"] == f"{job}:{EMAIL}"
    assert (end(notif, job), fences(notif, job)) == ([("delivered", 1, "")], 1)
    assert notif.one("SELECT count(*) FROM core.outbox") == 0


def test_delivered_keeps_the_providers_id_and_the_history(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    hands.turn()
    (mail,) = notif.mails()
    provider_id, history = notif.rows("SELECT provider_id, history FROM core.delivery WHERE job_id = %s", job)[0]
    assert provider_id == mail["id"]
    assert [move["state"] for move in history] == ["ready", "pushed", "claimed", "delivered"]


def test_a_fence_lives_seven_days_at_least(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    hands.turn()
    query = "SELECT expires_at - processed_at >= interval '7 days' FROM core.processed_job WHERE job_id = %s"
    assert notif.one(query, job) is True


def test_a_message_that_needs_no_template_is_frozen_by_its_claim(notif: Installation, hands: Hands) -> None:
    job = notif.send("email.message")
    (ref,) = hands.pick()
    frozen: list[bool] = []
    real = hands.ledger

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def freeze(self, *arguments: Any) -> bool:
            frozen.append(True)
            return real.freeze(*arguments)

    hands.ledger = Watching()
    assert hands.handle(ref) == "delivered"
    assert (frozen, len(notif.mails_of(job))) == ([], 1)


def test_expired_is_not_sent(notif: Installation, hands: Hands) -> None:
    message = {"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Code", "text": "123456"}
    job = notif.send("otp", **message)
    notif.rows("UPDATE core.outbox SET expires_at = now() - interval '1 s'")
    assert hands.turn() == ["expired"]
    assert (notif.mails(), fences(notif, job)) == ([], 1)
    assert end(notif, job)[0][0] == "expired"


def test_a_transactional_kind_without_an_age_is_never_dropped(notif: Installation, hands: Hands) -> None:
    job = notif.send("email.message")
    assert notif.one("SELECT expires_at - due_at = interval '3 days' FROM core.outbox") is True
    notif.rows("UPDATE core.outbox SET expires_at = now() - interval '1 s'")
    assert hands.turn() == ["dead"]
    assert letter(notif, job)[:2] == ("too_late", "failed")
    assert notif.mails() == []


def test_with_the_ambiguity_mark_nobody_says_it_was_not_sent(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.rows("UPDATE core.outbox SET expires_at = now() - interval '1 s', ambiguous = true, key_since = now()")
    assert hands.turn() == ["dead"]
    assert letter(notif, job)[:2] == ("expired", "unknown")


def test_the_age_counts_from_when_the_job_is_first_due(notif: Installation) -> None:
    job = notif.envelope("reset", **{"from": "s@mail.acme.test", "to": "a@example.test", "subject": "s", "text": "t"})
    at = notif.rows("SELECT now() + interval '2 days'")[0][0]
    notif.app.queue.schedule(EMAIL, job, at)
    assert notif.one("SELECT expires_at - due_at = interval '1 hour' AND due_at = %s FROM core.outbox", at) is True


def test_a_suppressed_address_is_not_written_to(notif: Installation, hands: Hands) -> None:
    hands.app.composer._delivery = hands.app.config.delivery.model_copy(update={"only": ("@safe.test",)})
    job = notif.send()
    assert hands.turn() == ["suppressed"]
    assert end(notif, job)[0] == ("suppressed", 0, "not covered by delivery.only or delivery.redirect_to")
    assert notif.mails() == []


def test_published_again_after_its_end_is_a_duplicate_that_ends_too(notif: Installation, hands: Hands) -> None:
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    hands.turn()
    notif.app.queue.publish(EMAIL, envelope)
    assert hands.turn() == ["duplicate"]
    assert len(notif.mails()) == 1
    assert [row[0] for row in end(notif, envelope.job_id)] == ["delivered", "duplicate"]
    assert notif.one("SELECT count(*) FROM core.outbox") == 0


def test_published_again_while_its_letter_is_pending_is_a_duplicate_without_a_fence(
    notif: Installation, hands: Hands
) -> None:
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    notif.sandbox.faults([{"fault": "error", "status": 422, "name": "invalid_parameter"}])
    assert hands.turn() == ["dead"]
    notif.app.queue.publish(EMAIL, envelope)
    assert hands.turn() == ["duplicate"]
    assert (fences(notif, envelope.job_id), notif.mails()) == (0, [])
    letters = notif.app.letters.list()
    assert [one.status for one in letters] == ["pending_review"]


def test_an_id_known_under_another_tenant_is_dead_before_anything_is_sent(notif: Installation, hands: Hands) -> None:
    first = notif.envelope()
    notif.app.queue.publish(EMAIL, first)
    hands.turn()
    second = notif.envelope(tenant=notif.add_tenant("Other")).model_copy(update={"job_id": first.job_id})
    notif.app.queue.publish(EMAIL, second)
    assert hands.turn() == ["dead"]
    assert letter(notif, first.job_id)[0] == "foreign"
    assert len(notif.mails()) == 1


def test_five_attempts_then_a_letter_of_unknown_outcome(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "500", "times": 5}])
    for _ in range(4):
        assert hands.turn() == ["retrying"]
        assert hands.pick() == []  # not before its slot
        notif.due()
    assert hands.turn() == ["dead"]
    assert letter(notif, job)[:3] == ("attempts_spent", "unknown", 5)
    keys = {request["key"] for request in notif.sandbox.requests()}
    bodies = {request["body_hash"] for request in notif.sandbox.requests()}
    assert (keys, len(bodies), len(notif.sandbox.requests())) == ({f"{job}:{EMAIL}"}, 1, 5)


def test_an_unknown_kind_waits_uncounted_and_dies_after_an_hour(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.rows("UPDATE core.outbox SET kind = 'order.new'")
    assert hands.turn() == ["ready"]
    wait = notif.rows("SELECT attempts, due_at - now() BETWEEN interval '50 s' AND interval '60 s' FROM core.outbox")
    assert wait == [(0, True)]
    notif.rows("UPDATE core.outbox SET unknown_since = now() - interval '1 hour'")
    notif.due()
    assert hands.turn() == ["dead"]
    assert letter(notif, job)[0] == "unknown_kind"


def test_data_of_another_model_waits_and_of_the_same_model_is_poison(notif: Installation, hands: Hands) -> None:
    waits, poison = notif.send(), notif.send()
    notif.rows("UPDATE core.outbox SET data = '{}', schema_hash = 'other' WHERE job_id = %s", waits)
    notif.rows("UPDATE core.outbox SET data = '{}' WHERE job_id = %s", poison)
    assert sorted(hands.turn()) == ["poison", "ready"]
    assert letter(notif, poison)[0] == "poison"
    assert letter(notif, waits) is None
    assert notif.one("SELECT count(*) FROM core.outbox") == 1


def test_a_row_whose_envelope_fails_its_schema_is_poison_with_its_row(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.rows("UPDATE core.outbox SET correlation_id = 'not printable: ä'")
    assert hands.turn() == ["poison"]
    assert letter(notif, job)[0] == "poison"
    assert notif.one("SELECT count(*) FROM core.outbox") == 0
    assert notif.one("SELECT raw IS NOT NULL FROM core.dead_letters") is True


def test_cancelled_before_a_worker_has_it(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    refs = hands.push()
    assert notif.app.queue.cancel(job) == {EMAIL: True}
    assert [hands.handle(ref) for ref in refs] == ["gone"]
    assert (notif.mails(), fences(notif, job), end(notif, job)[0][0]) == ([], 1, "cancelled")


def test_cancelled_while_claimed_is_too_late(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.pick()
    hands.ledger.claim(ref, hands.terms(), None)
    assert notif.app.queue.cancel(job) == {EMAIL: False}
    assert notif.state(job) == "claimed"


def test_cancelled_with_the_ambiguity_mark_is_too_late(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "reset_after"}])
    assert hands.turn() == ["retrying"]
    assert notif.app.queue.cancel(job) == {EMAIL: False}
    notif.due()
    assert hands.turn() == ["delivered"]
    assert len(notif.mails()) == 1


def test_a_settle_of_an_old_generation_writes_nothing(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.pick()
    terms = hands.terms()
    claimed = hands.ledger.claim(ref, terms, None)
    notif.rows("UPDATE core.outbox SET due_at = now() - interval '1 s'")
    hands.pick()  # its lease ran out: pushed again
    assert hands.ledger.settle(ref, claimed.generation, terms, Settlement("delivered", provider_id="x")) == "gone"  # type: ignore[union-attr]
    assert (fences(notif, job), notif.state(job)) == (0, "pushed")


def test_ten_surprises_in_a_row_are_an_alarm(notif: Installation, hands: Hands) -> None:
    for _ in range(10):
        notif.send()
    refs = hands.pick()
    real = hands.ledger

    class Broken:
        def gate(self, *_: Any) -> Any:
            raise ZeroDivisionError

    hands.ledger = Broken()  # type: ignore[assignment]
    assert [hands.handle(ref) for ref in refs] == ["error"] * 10
    assert hands.surprises.trouble == "10 unexpected errors in a row, the latest ZeroDivisionError"
    assert notif.rows("SELECT DISTINCT state, attempts FROM core.outbox") == [("pushed", 0)]
    hands.ledger = real
    assert hands.handle(refs[0]) == "delivered"
    assert hands.surprises.trouble == ""
