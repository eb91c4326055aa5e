"""Ten thousand bodies that are no reference, through a worker's own consumer: one letter each, and no neighbour is touched."""

from collections import Counter
from random import Random

from notif.adapters.redis_carrier import NAMESPACE, message_id
from tests import bodies
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

COUNT, NEIGHBOURS = 10_000, 100
SEED = 20_261_130


def test_ten_thousand_random_bodies(notif: Installation, hands: Hands) -> None:
    jobs = notif.send_many(NEIGHBOURS)
    refs = hands.push()
    good = [message_id(ref.job_id, ref.generation) for ref in refs]
    poison = list(bodies.random(Random(SEED), refs[0], COUNT))
    fill(notif, good, poison)
    hands.worker.closings.refresh()
    consumer = hands.worker.broker.consume(EMAIL, 64, 1000)
    came = []
    while notif.redis.llen(f"{NAMESPACE}:{EMAIL}"):
        hands.worker.closings.refresh()
        for message in iter(consumer.__next__, None):
            came.append(message.message_id)
            consumer.ack(message)
    assert came == good, "each good one, in its turn"
    letters = notif.rows("SELECT raw, cause, attempts, status, outcome, job_id FROM core.dead_letters")
    assert Counter(bytes(row[0]) for row in letters) == Counter(poison)
    assert {row[1:] for row in letters} == {("poison", 0, "pending_review", "failed", None)}
    assert [notif.redis.keys(f"{NAMESPACE}:{pattern}") for pattern in ("__acks__*", "*.msgs", "*.XQ*")] == [[], [], []]
    assert hands.worker.broker.held[EMAIL] == set()
    assert notif.one("SELECT count(*) FROM core.outbox WHERE job_id = ANY (%s)", jobs) == NEIGHBOURS


def fill(notif: Installation, good: list[str], poison: list[bytes]) -> None:
    """The queue anew: a good one after each hundredth of the poison."""
    pipeline = notif.redis.pipeline()
    pipeline.delete(f"{NAMESPACE}:{EMAIL}")
    each = len(poison) // len(good)
    for n, body in enumerate(poison):
        pipeline.hset(f"{NAMESPACE}:{EMAIL}.msgs", f"poison-{n}", body)
        pipeline.rpush(f"{NAMESPACE}:{EMAIL}", f"poison-{n}")
        if (n + 1) % each == 0:
            pipeline.rpush(f"{NAMESPACE}:{EMAIL}", good[n // each])
    pipeline.execute()


def test_one_id_with_two_contents_is_two_letters(notif: Installation, hands: Hands) -> None:
    """Who writes bytes here may well write them under one name; the same bytes, delivered again, are one letter."""
    hands.worker.closings.refresh()
    consumer = hands.worker.broker.consume(EMAIL, 16, 1000)
    for body in (b"one", b"two", b"two"):
        notif.redis.hset(f"{NAMESPACE}:{EMAIL}.msgs", "x", body)
        notif.redis.rpush(f"{NAMESPACE}:{EMAIL}", "x")
        assert next(consumer) is None
    assert notif.rows("SELECT raw FROM core.dead_letters ORDER BY id") == [(b"one",), (b"two",)]
    assert notif.redis.keys(f"{NAMESPACE}:*.msgs") == []
