"""Bytes that are no message, rows nobody knows, ids that name nothing: one letter each at most, and the neighbours go on."""

import gzip
import json
from random import Random
from typing import Any

import pytest

from notif.adapters.redis_carrier import NAMESPACE, client, encode, message_id
from notif.ports import Reference
from tests.kit import EMAIL, Installation, eventually
from tests.reports.living import Living
from tests.reports.ways import held_by, passed, silent, waiting
from tests.spine.hands import Hands
from tests.spine.relays import on_redis


def put(notif: Installation, identifier: str | bytes, body: bytes | None = None, queue: str = EMAIL) -> None:
    """Straight onto the queue, as anybody with Redis' address could."""
    if body is not None:
        notif.redis.hset(f"{NAMESPACE}:{queue}.msgs", identifier, body)
    notif.redis.rpush(f"{NAMESPACE}:{queue}", identifier)


def left_on_redis(notif: Installation) -> dict[str, int]:
    """What of messages there still is, bells and heartbeats aside."""
    names = [key.decode() for key in notif.redis.keys(f"{NAMESPACE}:*")]  # type: ignore[union-attr]
    return {name: 1 for name in names if ".msgs" in name or "__acks__" in name or name.endswith((".XQ", EMAIL))}


def test_b04_ten_thousand_ids_in_one_script(notif: Installation, hands: Hands) -> None:
    """Held by a process that died, fetched by one that would take twice as many: no script has its limit there."""
    ids = [f"id-{n}" for n in range(10_000)]
    pipeline = notif.redis.pipeline()
    pipeline.hset(f"{NAMESPACE}:{EMAIL}.msgs", mapping=dict.fromkeys(ids, "x"))
    pipeline.sadd(f"{NAMESPACE}:__acks__.dead.{EMAIL}", *ids)
    pipeline.execute()
    broker = hands.worker.broker
    silent(notif, "dead")
    broker.reap()
    assert (held_by(notif, "dead"), notif.redis.llen(f"{NAMESPACE}:{EMAIL}")) == (0, 10_000)
    assert len(broker.acks.fetch(EMAIL, 20_000)) == 10_000
    broker.acks.give_back(EMAIL, ids)
    assert notif.redis.llen(f"{NAMESPACE}:{EMAIL}") == 10_000


def test_b09_bytes_that_are_no_message_between_good_ones(
    notif: Installation, living: Living, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    before = notif.send_many(2)
    hands = Hands(notif)
    hands.push()
    put(notif, "poison", b"\xff\xfe")
    after = notif.send_many(6)
    hands.push()
    hands.close()
    living.worker()
    threads = list(living.threads)
    notif.until_empty(15)
    eventually(lambda: not left_on_redis(notif), within=10, what="nothing is held")
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, before + after))
    letters = notif.rows("SELECT raw, attempts, job_id FROM core.dead_letters")
    assert [(bytes(raw), attempts, job) for raw, attempts, job in letters] == [(b"\xff\xfe", 0, None)]
    assert all(thread.is_alive() for thread in threads)
    assert "Restarting consumer" not in caplog.text


def test_b18_ids_without_a_body_and_ids_that_are_there_twice(notif: Installation, living: Living) -> None:
    hands = Hands(notif)
    for n in range(1000):
        put(notif, f"nobody-{n}")
    jobs = notif.send_many(3)
    for ref in hands.push():
        put(notif, message_id(ref.job_id, ref.generation))  # its id once more
    hands.close()
    worker = living.worker()
    notif.until_empty(15)
    eventually(lambda: not left_on_redis(notif), within=10, what="nothing is held")
    assert held_by(notif, worker.broker.broker_id) == 0
    assert len(notif.sandbox.requests()) == 3
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.one("SELECT count(*) FROM core.dead_letters") == 0


def bodies(ref: Reference, chance: Random) -> list[bytes]:
    """A hundred: noise, truncated and foreign compression, JSON of every other shape, and a real message bent a little."""
    good = encode(ref, 0)
    fields = json.loads(good)
    shapes: list[Any] = [None, 7, "text", [], {}, [fields], {"args": fields["args"]}, {**fields, "args": []}]
    shapes += [{**fields, name: value} for name in fields for value in (None, 1, "x", [1], {"a": 1})]
    bent = [json.dumps(shape).encode() for shape in shapes]
    packed = gzip.compress(good)
    cut = [packed, *(packed[: chance.randrange(1, len(packed))] for _ in range(9)), b"", b"\0", good[:-1], good + b" "]
    noise = [chance.randbytes(chance.randrange(1, 200)) for _ in range(100 - len(bent) - len(cut))]
    return [body for body in bent + cut + noise if body != good]


def test_b29_a_hundred_bodies_of_every_kind(notif: Installation, living: Living) -> None:
    hands = Hands(notif)
    refs = [hands.push()[0] for _ in notif.send_many(1)]
    wrong = bodies(refs[0], Random(29))
    for n, body in enumerate(wrong):
        put(notif, f"wrong-{n}", body)
        if n % 25 == 0:
            notif.send()
            hands.push()
    hands.close()
    living.worker()
    threads = list(living.threads)
    notif.until_empty(15)
    eventually(lambda: not left_on_redis(notif), within=10, what="nothing is held")
    letters = notif.rows("SELECT raw, attempts, cause FROM core.dead_letters ORDER BY id")
    assert sorted(bytes(raw) for raw, _, _ in letters) == sorted(wrong)
    assert {(attempts, cause) for _, attempts, cause in letters} == {(0, "poison")}
    assert (len(notif.mails()), len(wrong) >= 95) == (5, True)
    assert all(thread.is_alive() for thread in threads)


def test_b58_an_old_worker_leaves_a_new_kind_to_a_new_one(notif: Installation, hands: Hands) -> None:
    job, other = notif.send(), notif.send()
    notif.rows("UPDATE core.outbox SET kind = 'order.new'")
    assert hands.turn() == ["ready", "ready"]
    notif.rows("UPDATE core.outbox SET kind = 'order.shipped' WHERE job_id = %s", job)  # that is: a worker who knows it
    passed(notif, hands, 61)
    assert sorted(hands.turn()) == ["delivered", "ready"]
    assert waiting(notif) == [("ready", 0)]
    passed(notif, hands, 3600)
    assert hands.turn() == ["dead"]
    (letter,) = notif.app.letters.list()
    assert (letter.job_id, letter.cause, letter.outcome) == (other, "unknown_kind", "failed")
    assert notif.app.letters.replay(letter.id, None, accept=False, who="ann") == other  # never silently discarded


def test_b58_an_actor_nobody_has_is_a_letter(notif: Installation, living: Living) -> None:
    hands = Hands(notif)
    notif.send()
    (ref,) = hands.push()
    hands.close()
    body = encode(ref, 0).replace(b'"actor_name":"notif.email.transactional"', b'"actor_name":"send_mail_v2"')
    put(notif, "new-actor", body)
    living.worker()
    eventually(lambda: notif.rows("SELECT raw FROM core.dead_letters"), within=10)
    assert notif.rows("SELECT cause, raw FROM core.dead_letters") == [("poison", body)]
    notif.until_empty(15)
    assert not [key for key in notif.redis.keys(f"{NAMESPACE}:*") if b".XQ" in key]
    assert on_redis(notif) == []


def test_b30_a_counter_that_no_new_transport_id_resets(notif: Installation, hands: Hands) -> None:
    """Every delivery has another id on Redis; five workers in a row die of the job."""
    job = notif.send()
    ids = set()
    for _ in range(5):
        (ref,) = hands.push()
        ids.add(message_id(ref.job_id, ref.generation))
        hands.ledger.claim(ref, hands.terms(), b"{}")
        passed(notif, hands, 7)
    assert (hands.push(), len(ids)) == ([], 5)
    assert notif.rows("SELECT job_id, cause, attempts FROM core.dead_letters") == [(job, "worker_lost", 5)]
    redis = client(hands.app.redis_url, retries=1, timeout=2.0)
    assert redis.exists(f"{NAMESPACE}:{EMAIL}.XQ") == 0
    redis.close()
