"""Where nothing personal and no secret may be: everything on Redis, and what processes wrote."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from tests.servers import PASSWORD, Servers


def secrets(servers: Servers) -> list[str]:
    """What the processes of an installation hold and never tell."""
    return [PASSWORD, urlsplit(servers.redis_url).password or PASSWORD]


def leaks(client: "redis.Redis", logs: Iterable[Path], words: Sequence[str]) -> list[str]:
    """Each place that holds one of the words, as `place: word`; upper and lower case are the same."""
    places = [*on_redis(client), *((str(log), log.read_bytes()) for log in logs if log.is_file())]
    return [
        f"{place}: {word}" for place, content in places for word in words if word.lower().encode() in content.lower()
    ]


def on_redis(client: "redis.Redis") -> Iterator[tuple[str, bytes]]:
    """Every key with all that is in it."""
    keys: Any = client.scan_iter()
    for key in keys:
        yield repr(key), key + b" " + b" ".join(_content(client, key))


def _content(client: Any, key: bytes) -> list[bytes]:
    match client.type(key):
        case b"string":
            return [client.get(key) or b""]
        case b"list":
            return list(client.lrange(key, 0, -1))
        case b"set":
            return list(client.smembers(key))
        case b"zset":
            return list(client.zrange(key, 0, -1))
        case b"hash":
            return [part for pair in client.hgetall(key).items() for part in pair]
        case b"none":  # gone meanwhile
            return []
        case other:
            raise AssertionError(f"a type that is not looked into: {other!r}")
