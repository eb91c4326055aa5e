"""What a process has fetched: nobody else gets it while it lives, everybody does when it has fallen silent."""

import json
from typing import Any

from notif.adapters.dramatiq_worker import ReferenceConsumer
from notif.adapters.redis_carrier import NAMESPACE, SILENCE, STALL, Acks, encode, message_id
from notif.ports import Reference
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

BEATS, LOOK = f"{NAMESPACE}:__heartbeats__", f"{NAMESPACE}:reaped"


def put(notif: Installation, *names: str, queue: str = EMAIL) -> list[bytes]:
    """References under these ids, at the end of the queue."""
    for name in names:
        notif.redis.hset(f"{NAMESPACE}:{queue}.msgs", name, json.dumps(name))
        notif.redis.rpush(f"{NAMESPACE}:{queue}", name)
    return [name.encode() for name in names]


def waiting(notif: Installation, queue: str = EMAIL) -> list[bytes]:
    found: Any = notif.redis.lrange(f"{NAMESPACE}:{queue}", 0, -1)
    return list(found)


def silent(notif: Installation, process: str, seconds: float, queue: str = EMAIL) -> None:
    """This process last spoke so long ago, while others did look."""
    now: Any = notif.redis.time()
    notif.redis.zadd(BEATS, {f"{process}.{queue}": now[0] - seconds})
    notif.redis.set(LOOK, now[0])


def test_a_silent_process_loses_what_it_held(notif: Installation) -> None:
    dead, living = Acks(notif.redis, "dead"), Acks(notif.redis, "living")
    ids = put(notif, "a", "b")
    assert [each for each, _ in dead.fetch(EMAIL, 16)] == ids
    silent(notif, "dead", SILENCE - 1)
    assert living.reap([EMAIL]) == 0
    silent(notif, "dead", SILENCE + 1)
    assert living.reap([EMAIL]) == 2
    assert sorted(waiting(notif)) == ids
    assert notif.redis.llen(f"{NAMESPACE}:{EMAIL}.bell") == 1  # an idle consumer doesn't sleep on
    assert (dead.held(EMAIL), notif.redis.zrange(BEATS, 0, -1)) == (set(), [f"living.{EMAIL}".encode()])


def test_any_process_gives_back_for_every_queue(notif: Installation) -> None:
    """The queue's own worker may be the one that died: what it held waits for the next one, it isn't lost to it."""
    ids = put(notif, "a", queue="loyalty")
    Acks(notif.redis, "dead").fetch("loyalty", 16)
    silent(notif, "dead", SILENCE + 1, queue="loyalty")
    assert Acks(notif.redis, "living").reap([EMAIL]) == 1
    assert waiting(notif, "loyalty") == ids


def test_a_process_that_fetches_or_looks_is_not_silent(notif: Installation) -> None:
    one, other = Acks(notif.redis, "one"), Acks(notif.redis, "other")
    put(notif, "a")
    one.fetch(EMAIL, 16)
    for sign_of_life in (lambda: one.fetch(EMAIL, 16), lambda: one.reap([EMAIL])):
        silent(notif, "one", SILENCE + 1)
        sign_of_life()
        assert other.reap([EMAIL]) == 0


def test_after_a_stall_of_redis_nobody_is_taken_for_dead(notif: Installation) -> None:
    """Redis stood still for longer than a process may be silent: the first who looks then finds all others silent."""
    living, other = Acks(notif.redis, "living"), Acks(notif.redis, "other")
    put(notif, "a")
    living.fetch(EMAIL, 16)
    silent(notif, "living", SILENCE + 1)
    now: Any = notif.redis.time()
    notif.redis.set(LOOK, now[0] - STALL - 1)
    assert other.reap([EMAIL]) == 0
    assert other.reap([EMAIL]) == 1  # it had its chance to say something


def test_when_redis_clock_has_gone_back_the_dead_lose_what_they_held_all_the_same(notif: Installation) -> None:
    dead, living = Acks(notif.redis, "dead"), Acks(notif.redis, "living")
    put(notif, "a")
    dead.fetch(EMAIL, 16)
    silent(notif, "dead", -3600)  # its last words are an hour from now
    assert living.reap([EMAIL]) == 0
    now: Any = notif.redis.time()
    assert now[0] - SILENCE < notif.redis.zscore(BEATS, f"dead.{EMAIL}") < now[0] + 1
    silent(notif, "dead", SILENCE + 1)
    assert living.reap([EMAIL]) == 1


def test_what_redis_no_longer_knows_is_not_given_back(notif: Installation) -> None:
    dead = Acks(notif.redis, "dead")
    put(notif, "a")
    dead.fetch(EMAIL, 16)
    notif.redis.hdel(f"{NAMESPACE}:{EMAIL}.msgs", "a")  # the relay has pushed anew
    silent(notif, "dead", SILENCE + 1)
    assert Acks(notif.redis, "living").reap([EMAIL]) == 0
    assert waiting(notif) == []


def test_a_stranger_among_the_heartbeats_breaks_nothing(notif: Installation) -> None:
    notif.redis.zadd(BEATS, {"a worker of another release": 1})
    notif.redis.set(LOOK, notif.redis.time()[0])
    assert Acks(notif.redis, "living").reap([EMAIL]) == 0
    assert notif.redis.zcard(BEATS) == 1


def test_what_a_lost_answer_left_to_a_process_goes_back(notif: Installation, hands: Hands) -> None:
    """The script ran, its answer never came: the process lives, so nobody else would ever give this back."""
    broker = hands.worker.broker
    job = notif.send()
    (ref,) = hands.push()
    identifier = message_id(job, ref.generation).encode()
    broker.acks.fetch(EMAIL, 16)  # and no consumer hears of it
    broker.reap()
    assert broker.acks.held(EMAIL) == {identifier}  # the answer may be on its way
    broker.reap()
    assert (broker.acks.held(EMAIL), waiting(notif)) == (set(), [identifier])


def test_what_a_consumer_holds_is_never_taken_for_lost(notif: Installation, hands: Hands) -> None:
    broker = hands.worker.broker
    hands.worker.closings.refresh()
    notif.send_many(3)
    refs = hands.push()
    messages = [next(first) for first in [broker.consume(EMAIL, 16, 1000)] for _ in refs]
    for _ in range(3):
        broker.reap()
    assert len(broker.acks.held(EMAIL)) == 3
    # What one consumer fetched, its successor may ack: Dramatiq makes a new one after every error.
    successor = broker.consume(EMAIL, 16, 1000)
    for message in messages:
        assert message is not None
        successor.ack(message)
    assert broker.acks.held(EMAIL) == broker.held[EMAIL] == set()


def test_a_full_consumer_counts_what_its_predecessor_fetched(notif: Installation, hands: Hands) -> None:
    broker = hands.worker.broker
    hands.worker.closings.refresh()
    notif.send_many(6)
    hands.push()
    first = broker.consume(EMAIL, 4, 1000)
    assert [next(first) is not None for _ in range(4)] == [True] * 4
    assert next(broker.consume(EMAIL, 4, 1000)) is None
    assert len(waiting(notif)) == 2
    assert isinstance(first, ReferenceConsumer)


def test_encoded_references_hold_ids_only(notif: Installation) -> None:
    ref = Reference(notif.tenant, EMAIL, notif.tenant, 7)
    assert set(json.loads(encode(ref, 1))) == {
        "queue_name", "actor_name", "args", "kwargs", "options", "message_id", "message_timestamp",
    }  # fmt: skip
