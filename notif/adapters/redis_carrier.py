"""References on Redis, in Dramatiq's documented layout ("Enqueueing messages from other languages").

    {namespace}:{queue}.msgs   HASH  message id → message     {namespace}:{queue}        LIST  message ids
    {namespace}:{queue}.bell   LIST  wakes idle consumers     {namespace}:epoch          gone: Redis was wiped

A message id is `job:generation`, so that no late ack or redelivery ever meets a newer push of the same job.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from notif.errors import Unavailable
from notif.ports import Reference

NAMESPACE = "notif"
# At most 16 bells wait: one too many costs an idle consumer an empty fetch.
PUSH = """
local intact = redis.call('SET', KEYS[1], ARGV[1], 'NX') == false
for i = 2, #ARGV, 4 do
  local queue, previous, id, message = KEYS[1]:sub(1, -6) .. ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if redis.call('HDEL', queue .. '.msgs', previous) == 1 then
    redis.call('LREM', queue, 0, previous)
  end
  if redis.call('HSETNX', queue .. '.msgs', id, message) == 1 then
    redis.call('RPUSH', queue, id)
    redis.call('LPUSH', queue .. '.bell', '1')
    redis.call('LTRIM', queue .. '.bell', 0, 15)
  end
end
return intact and 1 or 0
"""


def client(url: str, *, retries: int, timeout: float) -> "redis.Redis":
    """A client with explicit timeouts (seconds) and retries: redis-py's own defaults hold a call for up to a minute."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.01), retries),
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
    )


def message_id(job_id: UUID, generation: int) -> str:
    return f"{job_id}:{generation}"


def encode(ref: Reference, at: int) -> bytes:
    """The message as Dramatiq reads it; `at` in milliseconds. An actor bears its queue's name."""
    identifier = message_id(ref.job_id, ref.generation)
    message = {
        "queue_name": ref.queue,
        "actor_name": ref.queue,
        "args": [str(ref.job_id), str(ref.tenant_id), ref.generation],
        "kwargs": {},
        "options": {"redis_message_id": identifier},
        "message_id": identifier,
        "message_timestamp": at,
    }
    return json.dumps(message, separators=(",", ":")).encode()


def decode(queue: str, identifier: bytes, raw: bytes) -> Reference:
    """Strict: what `encode` would not have written for this queue under this id is ValueError, and so poison."""
    try:
        message = json.loads(raw)
        job, tenant, generation = message["args"]
        at = message["message_timestamp"]
        ref = Reference(UUID(job), queue, UUID(tenant), generation)
        if type(generation) is not int or type(at) is not int or encode(ref, at) != raw:
            raise ValueError("no reference: its fields are not those of this queue")
        if message_id(ref.job_id, generation).encode() != identifier:
            raise ValueError("no reference: it is stored under another id")
    except (TypeError, KeyError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no reference: {type(error).__name__}") from None
    return ref


def named(identifier: str) -> tuple[UUID, int] | None:
    """Job and generation of a message id, if it has our form: ties a spoilt body to its row."""
    job, _, generation = identifier.rpartition(":")
    try:
        found = UUID(job), int(generation)
    except ValueError:
        return None
    return found if 0 < found[1] < 2**63 else None


class RedisCarrier:
    """CarrierPort. Pushing twice is harmless: an id that is there is left alone."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client(url, retries=1, timeout=2.0)
        self._push = self._client.register_script(PUSH)
        self._clock = clock

    def push(self, refs: Sequence[Reference]) -> bool:
        at = int(self._clock() * 1000)
        arguments: list[Any] = [at]
        for ref in refs:
            previous = message_id(ref.job_id, ref.generation - 1)
            arguments += [ref.queue, previous, message_id(ref.job_id, ref.generation), encode(ref, at)]
        try:
            return bool(self._push(keys=[f"{NAMESPACE}:epoch"], args=arguments))
        except RedisError as error:
            raise Unavailable(f"Redis does not answer: {error}") from error

    def alive(self) -> bool:
        try:
            return not self._client.set(f"{NAMESPACE}:epoch", int(self._clock() * 1000), nx=True)
        except RedisError as error:
            raise Unavailable(f"Redis does not answer: {error}") from error

    def close(self) -> None:
        self._client.close()
