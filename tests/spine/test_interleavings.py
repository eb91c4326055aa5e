"""The letters of the project's interleavings that these parts can meet: each must be harmless.

l (httpx' timeouts are per operation) is tests/provider/test_deadline.py; n (a pause comes while a worker waits for its permit) is
here with a closing, pauses come with the lanes.
"""

import json
import threading
import uuid
from typing import Any

import redis

from notif.adapters.redis_carrier import NAMESPACE, Acks, message_id
from notif.closings import throttle
from notif.ports import Reference, Settlement
from notif.verdict import Accepted, Answer
from tests.kit import EMAIL, Installation, eventually
from tests.spine.hands import Hands


def fetched(client: "redis.Redis", broker: str, queue: str = EMAIL) -> list[str]:
    """The ids a consumer of this broker id fetches now."""
    return [identifier.decode() for identifier, _ in Acks(client, broker).fetch(queue, 16)]


def acks(client: "redis.Redis", broker: str, queue: str = EMAIL) -> str:
    return f"{NAMESPACE}:__acks__.{broker}.{queue}"


def identifier(ref: Reference) -> str:
    return message_id(ref.job_id, ref.generation)


def test_a_two_holders_of_one_reference(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    other = Hands(notif, hands.provider)
    notif.sandbox.faults([{"fault": "hold"}])
    first = threading.Thread(target=hands.handle, args=(ref,))
    first.start()
    notif.sandbox.wait_for_held()
    assert other.handle(ref) == "gone"  # the living worker was reaped: its reference came to a second one
    notif.sandbox.release()
    first.join()
    other.close()
    assert notif.state(job) == "delivered"
    assert len(notif.mails()) == 1


def test_b_duplicate_ends_its_row(notif: Installation, hands: Hands) -> None:
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    hands.turn()
    notif.app.queue.publish(EMAIL, envelope)
    assert hands.turn() == ["duplicate"]
    assert hands.pick() == []


def test_c_a_late_ack_never_meets_a_newer_push(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.push()
    assert fetched(notif.redis, "one") == [identifier(ref)]
    hands.ledger.settle(ref, ref.generation, hands.terms(), Settlement("deferred", wait=0.0))
    (again,) = hands.push()
    Acks(notif.redis, "one").ack(EMAIL, identifier(ref))
    assert notif.redis.lrange(f"{NAMESPACE}:{EMAIL}", 0, -1) == [identifier(again).encode()]
    assert notif.redis.hkeys(f"{NAMESPACE}:{EMAIL}.msgs") == [identifier(again).encode()]


def test_d_a_fetch_whose_reply_was_lost(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    assert fetched(notif.redis, "living, but it never saw the reply") == [identifier(ref)]
    notif.due()
    (again,) = hands.push()
    assert fetched(notif.redis, "another") == [identifier(again)]
    assert hands.handle(again) == "delivered"
    assert notif.state(job) == "delivered"


def test_e_a_body_without_its_place_in_the_list(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.push()
    notif.redis.delete(f"{NAMESPACE}:{EMAIL}")
    notif.due()
    (again,) = hands.push()
    assert fetched(notif.redis, "one") == [identifier(again)]
    assert notif.redis.hkeys(f"{NAMESPACE}:{EMAIL}.msgs") == [identifier(again).encode()]
    assert identifier(ref) != identifier(again)


def test_f_an_early_redelivery_of_a_retry(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    notif.sandbox.faults([{"fault": "500"}])
    assert hands.handle(ref) == "retrying"
    assert hands.handle(ref) == "gone"
    assert notif.rows("SELECT attempts, state FROM core.outbox WHERE job_id = %s", job) == [(1, "retrying")]
    assert len(notif.sandbox.requests()) == 1


def test_g_a_cancelled_jobs_copy_in_redis(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    assert notif.app.queue.cancel(job) == {EMAIL: True}
    assert hands.handle(ref) == "gone"
    assert notif.sandbox.requests() == []


def test_g_a_redis_restored_from_an_old_copy(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.push()
    copy = {key: notif.redis.dump(key) for key in notif.redis.keys(f"{NAMESPACE}:{EMAIL}*")}
    assert hands.handle(ref) == "delivered"
    notif.redis.flushdb()
    for key, value in copy.items():
        notif.redis.restore(key, 0, value or b"")
    assert fetched(notif.redis, "one") == [identifier(ref)]
    assert hands.handle(ref) == "gone"
    assert len(notif.mails()) == 1


def test_h_poison_with_a_row_is_one_letter(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.push()
    notif.redis.hset(f"{NAMESPACE}:{EMAIL}.msgs", identifier(ref), b"\xff\xfe")
    hands.worker.closings.refresh()  # Postgres answers: else nothing is fetched
    assert next(hands.worker.broker.consume(EMAIL, 16, 1000)) is None
    notif.due()
    assert hands.pick() == []
    letters = notif.rows("SELECT job_id, cause, raw, attempts FROM core.dead_letters")
    assert letters == [(job, "poison", b"\xff\xfe", 0)]
    assert notif.redis.hlen(f"{NAMESPACE}:{EMAIL}.msgs") == 0
    assert notif.redis.keys(f"{NAMESPACE}:__acks__*") == []


def test_i_the_relay_holds_no_lock_over_redis(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.pick()  # committed, not pushed: as if Redis stalled now
    other = Hands(notif, hands.provider)
    assert other.handle(ref) == "delivered"
    other.close()
    hands.carrier.push([ref])  # it arrives late
    assert hands.handle(ref) == "gone"


def test_j_one_consumers_end_leaves_the_others_row(loyalty: Installation, hands: Hands) -> None:
    envelope = loyalty.envelope("order.placed", **loyalty.envelope().data, points=7)
    loyalty.app.queue.publish([EMAIL, "loyalty"], envelope)
    assert hands.turn() == ["delivered"]
    loyalty.redis.flushall()
    assert loyalty.state(envelope.job_id, "loyalty") == "ready"
    assert hands.turn("loyalty") == ["delivered"]
    assert loyalty.admin("SELECT points FROM public.loyalty") == [(7,)]


def test_m_permits_refused_spend_no_attempt(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    for _ in range(7):
        (ref,) = hands.pick()
        hands.closings.close(throttle("resend", "rate limited", 60, 60))
        assert hands.handle(ref) == "ready"
        assert notif.rows("SELECT attempts, key_since FROM core.outbox") == [(0, None)]
        assert hands.pick() == []  # nothing of a closed provider
        notif.rows("DELETE FROM core.provider_state")
        hands.closings.refresh()
        notif.due()
    assert hands.turn() == ["delivered"]
    assert notif.rows("SELECT attempts FROM core.delivery WHERE job_id = %s", job) == [(1,)]


def test_n_closed_between_permit_and_call_is_not_started(notif: Installation, hands: Hands) -> None:
    """The freeze of a template's first call lies between the two: the provider is closed right then."""
    job = notif.send()
    (ref,) = hands.pick()
    ledger, closings = hands.ledger, hands.closings

    class Closing:
        """The real ledger, and somebody who closes the provider at the worst moment."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        def freeze(self, *arguments: Any) -> bool:
            frozen = ledger.freeze(*arguments)
            closings.close(throttle("resend", "rate limited", 30, 30))
            return frozen

    hands.ledger = Closing()
    assert hands.handle(ref) == "ready"
    assert notif.sandbox.requests() == []
    attempts, request = notif.rows("SELECT attempts, request FROM core.outbox WHERE job_id = %s", job)[0]
    assert attempts == 0
    assert json.loads(request)["to"] == ["ann@example.test"]


def test_o_a_settle_repeated_after_a_lost_answer_writes_once(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.pick()
    terms = hands.terms()
    claimed = hands.ledger.claim(ref, terms, b"{}")
    settle = (ref, claimed.generation, terms, Settlement("delivered", provider_id="x"))  # type: ignore[union-attr]
    assert hands.ledger.settle(*settle) == "delivered"
    assert hands.ledger.settle(*settle) == "gone"
    assert notif.rows("SELECT verdict FROM core.delivery WHERE job_id = %s", job) == [("delivered",)]


def test_p_a_fence_outlives_the_row_it_guards(notif: Installation, hands: Hands) -> None:
    envelope, done = notif.envelope(), notif.send()
    notif.app.queue.publish(EMAIL, envelope)
    hands.turn()
    notif.app.queue.publish(EMAIL, envelope)
    notif.rows("UPDATE core.processed_job SET expires_at = now() - interval '1 s'")
    assert hands.app.upkeep.clean_fences(100) == 1
    assert notif.rows("SELECT job_id FROM core.processed_job") == [(envelope.job_id,)]
    assert hands.turn() == ["duplicate"]
    assert len(notif.mails_of(envelope.job_id)) == 1
    assert done != envelope.job_id


def test_a_call_that_outlives_its_lease_with_provider_keys(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.pick()
    notif.sandbox.faults([{"fault": "hold"}])
    first = threading.Thread(target=hands.handle, args=(ref,))
    first.start()
    notif.sandbox.wait_for_held()
    notif.due()  # nobody renews it here: its lease has run out
    (again,) = hands.pick()
    assert notif.one("SELECT ambiguous FROM core.outbox") is True
    assert hands.handle(again) in ("delivered", "retrying")  # the first is still in progress at the provider, or done
    notif.sandbox.release()
    first.join()
    notif.due()
    hands.turn()
    assert notif.state(job) == "delivered"
    assert len(notif.mails()) == 1
    assert len({request["body_hash"] for request in notif.sandbox.requests()}) == 1


def test_a_call_that_outlives_its_lease_without_provider_keys(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    hands.keyed = False
    (ref,) = hands.pick()
    claimed = hands.ledger.claim(ref, hands.terms(), b"{}")
    notif.due()
    assert hands.pick() == []
    letter = notif.rows("SELECT cause, outcome, attempts FROM core.dead_letters WHERE job_id = %s", job)
    assert letter == [("worker_lost", "unknown", 1)]
    late = Settlement("delivered", provider_id="x")
    assert hands.ledger.settle(ref, claimed.generation, hands.terms(), late) == "gone"  # type: ignore[union-attr]


def test_a_timeout_without_provider_keys_is_unknown_unless_the_kind_says_resend(
    notif: Installation, hands: Hands
) -> None:
    message = {"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Code", "text": "123456"}
    hands.keyed = False
    normal, otp = notif.send("email.message", **message), notif.send("otp", **message)
    notif.sandbox.faults([{"fault": "500", "times": 2}])
    assert sorted(hands.turn()) == ["dead", "retrying"]
    assert notif.one("SELECT outcome FROM core.dead_letters WHERE job_id = %s", normal) == "unknown"
    assert notif.state(otp) == "retrying"


def test_a_key_too_old_is_never_used_again(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "500"}])
    hands.turn()
    notif.rows("UPDATE core.outbox SET key_since = now() - interval '23 hours 1 minute'")
    notif.due()
    assert hands.turn() == ["dead"]
    assert notif.rows("SELECT cause, outcome FROM core.dead_letters WHERE job_id = %s", job) == [
        ("unrepeatable", "unknown")
    ]
    assert len(notif.sandbox.requests()) == 1


def test_too_little_of_the_lease_left_starts_no_call(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    (ref,) = hands.pick()
    real = hands.ledger

    class Sleeping:
        """The real ledger; the host sleeps for 5.5 s of the 6 s after the claim."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def freeze(self, *arguments: Any) -> bool:
            hands.clock_offset += 5.5
            return real.freeze(*arguments)

    hands.ledger = Sleeping()
    assert hands.handle(ref) == "ready"
    assert notif.sandbox.requests() == []
    assert notif.rows("SELECT attempts FROM core.outbox WHERE job_id = %s", job) == [(0,)]


def test_the_answer_is_a_value(notif: Installation, hands: Hands) -> None:
    """The real client against the sandbox: what a call answers."""
    provider, kind = hands.provider, hands.app.kinds.get("order.shipped")
    message = hands.app.composer.message(kind, kind.parse(notif.envelope().data))
    answer: Answer = provider.send(provider.build(message, uuid.uuid4()), "key", 1.0)
    assert isinstance(answer, Accepted)
    eventually(notif.mails)


def test_nothing_is_fetched_while_postgres_does_not_answer(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.push()
    consumer = hands.worker.broker.consume(EMAIL, 16, 1000)
    assert next(consumer) is None  # no closings were read lately: Postgres has not answered
    assert notif.redis.lrange(f"{NAMESPACE}:{EMAIL}", 0, -1) == [identifier(ref).encode()]
    hands.worker.closings.refresh()
    message = next(consumer)
    assert message is not None
    assert message.message_id == identifier(ref)
