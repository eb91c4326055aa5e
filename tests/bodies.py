"""Bodies that are no reference, for queues of Redis."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

from notif.adapters.redis_carrier import encode, message_id
from notif.ports import Reference


def structural(ref: Reference) -> dict[str, tuple[str | bytes, bytes]]:
    """What breaks Dramatiq's own worker, and more of its kind: name → id and body, made from a reference that is good."""
    good = encode(ref, 1_700_000_000_000)
    own = message_id(ref.job_id, ref.generation)
    fields: dict[str, Any] = json.loads(good)
    options: dict[str, Any] = fields["options"]

    def other(**changed: Any) -> bytes:
        return json.dumps({**fields, **changed}, separators=(",", ":")).encode()

    found = {
        "bytes that are no UTF-8": b"\xff\xfe\x00",
        "truncated": good[:-7],
        "nothing": b"",
        "null": b"null",
        "a list": b"[" + good + b"]",
        "UTF-16": good.decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + good,
        "white space": good + b"\n",
        "a field more": other(surprise=1),
        "a field less": json.dumps({k: v for k, v in fields.items() if k != "actor_name"}).encode(),
        "args null": other(args=None),
        "args of two": other(args=fields["args"][:2]),
        "args of four": other(args=[*fields["args"], 1]),
        "kwargs null": other(kwargs=None),
        "kwargs with something": other(kwargs={"x": 1}),
        "options null": other(options=None),
        "actor_name a list": other(actor_name=[]),
        "an actor nobody has": other(actor_name="send_mail"),
        "message_id a list": other(message_id=[1]),
        "a queue nobody has": other(queue_name="nowhere"),
        "another queue": other(queue_name="loyalty"),
        "no redis_message_id": other(options={}),
        "another redis_message_id": other(options={"redis_message_id": "x"}),
        "max_age of text": other(options={**options, "max_age": "x"}),
        "time_limit of text": other(options={**options, "time_limit": "x"}),
        "max_retries of text": other(options={**options, "max_retries": "x"}),
        "eta never": other(options={**options, "eta": float("inf")}),
        "eta in the past": other(options={**options, "eta": -5}),
        "pipe_target": other(options={**options, "pipe_target": {}}),
        "timestamp of text": other(message_timestamp="now"),
        "timestamp true": other(message_timestamp=True),
        "generation of text": other(args=[*fields["args"][:2], str(ref.generation)]),
        "generation a fraction": other(args=[*fields["args"][:2], float(ref.generation)]),
        "generation true": other(args=[*fields["args"][:2], True]),
        "an id in capitals": other(args=[str(ref.job_id).upper() + " ", *fields["args"][1:]]),
        "a tenant that is none": other(args=[fields["args"][0], "tenant", ref.generation]),
        "a number of 5,000 digits": good.replace(b'"message_timestamp":1', b'"message_timestamp":' + b"1" * 5_000),
        "nested too deeply": b"[" * 100_000,
        "half a surrogate pair": other(args=["\ud800", *fields["args"][1:]]),
        "NUL": other(args=["\0", *fields["args"][1:]]),
        "five megabytes": b"x" * 5_000_000,
        "stored under another id": good,
    }
    assert all(body != good for name, body in found.items() if name != "stored under another id")
    cases: dict[str, tuple[str | bytes, bytes]] = {
        name: (f"{n}-{own}", body) for n, (name, body) in enumerate(found.items())
    }
    return cases | {
        "an id of bytes": (b"\xff\x00\xfe", b"x"),
        "an id of nothing": (b"", b"x"),
        "an id of 300 characters": ("i" * 300, b"x"),
        "an id of another job": (message_id(UUID(int=7), 9), good),
    }


def random(chance: Random, ref: Reference, count: int) -> Iterator[bytes]:
    """Noise, JSON of any shape, and a good reference with some of its bytes changed: none of them is one."""
    good = encode(ref, 1_700_000_000_000)
    for n in range(count):
        match n % 3:
            case 0:
                yield chance.randbytes(chance.randrange(0, 400))
            case 1:
                yield json.dumps(_json(chance, 3)).encode()
            case _:
                yield _bent(chance, good)


def _json(chance: Random, depth: int) -> Any:
    simple = (
        None,
        True,
        chance.randrange(-9, 10**12),
        chance.random(),
        "".join(chance.choices('ab{}"\\é\0\ud800', k=5)),
    )
    kind = chance.randrange(8 if depth else 5)
    if kind < 5:
        return simple[kind]
    if kind == 5:
        return [_json(chance, depth - 1) for _ in range(chance.randrange(4))]
    names = ("queue_name", "actor_name", "args", "kwargs", "options", "message_id", "message_timestamp", "x")
    return {name: _json(chance, depth - 1) for name in chance.sample(names, chance.randrange(len(names)))}


def _bent(chance: Random, good: bytes) -> bytes:
    bent = bytearray(good)
    while bytes(bent) == good:
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(bent))
            match chance.randrange(3):
                case 0:
                    bent[at] = chance.randrange(256)
                case 1:
                    del bent[at : at + chance.randrange(1, 9)]
                case _:
                    bent[at:at] = chance.randbytes(chance.randrange(1, 4))
    return bytes(bent)
