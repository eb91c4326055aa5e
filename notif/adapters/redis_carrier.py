"""References on Redis, in Dramatiq's documented layout ("Enqueueing messages from other languages").

    {namespace}:{queue}.msgs   HASH  message id → message     {namespace}:{queue}        LIST  message ids
    {namespace}:{queue}.bell   LIST  wakes idle consumers     {namespace}:epoch          gone: Redis was wiped
    {namespace}:__acks__.{process}.{queue}   SET   what a process has fetched and not acked
    {namespace}:__heartbeats__               ZSET  {process}.{queue} → when it last said something, on Redis' clock
    {namespace}:installation   whose Redis this is
    {namespace}:reaped         when somebody last looked for silent processes

A message id is `job:generation`, so that no late ack or redelivery ever meets a newer push of the same job.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from notif.errors import Unavailable
from notif.ports import Reference

NAMESPACE = "notif"
SILENCE = 10.0
"""Seconds after which a silent process' unacked references go back."""
STALL = SILENCE / 2
"""Seconds without a look by anybody after which silence proves nothing: Redis stood still, or no worker ran."""

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

# Redis' clock: that of a host which is ten seconds slow would make its living process look dead to all others.
NOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local beats = KEYS[1] .. ':__heartbeats__'
"""
RING = """
local function ring(queue)
  redis.call('LPUSH', queue .. '.bell', '1')
  redis.call('LTRIM', queue .. '.bell', 0, 15)
end
"""
# ARGV: process, queue, how many. An id without a body names nothing: dropped, and takes nobody's place; 10,000 of them at most
# in one call, which is a few milliseconds of everybody's Redis.
FETCH = (
    NOW
    + """
local queue, member, found = KEYS[1] .. ':' .. ARGV[2], ARGV[1] .. '.' .. ARGV[2], {}
redis.call('ZADD', beats, now, member)
for i = 1, 10000 do
  if #found >= 2 * ARGV[3] then break end
  local id = redis.call('LPOP', queue)
  if not id then break end
  local body = redis.call('HGET', queue .. '.msgs', id)
  if body then
    redis.call('SADD', KEYS[1] .. ':__acks__.' .. member, id)
    table.insert(found, id)
    table.insert(found, body)
  end
end
return found
"""
)
# ARGV: process, queue, id.
ACK = """
if redis.call('SREM', KEYS[1] .. ':__acks__.' .. ARGV[1] .. '.' .. ARGV[2], ARGV[3]) == 1 then
  redis.call('HDEL', KEYS[1] .. ':' .. ARGV[2] .. '.msgs', ARGV[3])
end
"""
# ARGV: process, queue, ids.
GIVE_BACK = (
    RING
    + """
local queue = KEYS[1] .. ':' .. ARGV[2]
for i = 3, #ARGV do
  if redis.call('SREM', KEYS[1] .. ':__acks__.' .. ARGV[1] .. '.' .. ARGV[2], ARGV[i]) == 1
      and redis.call('HEXISTS', queue .. '.msgs', ARGV[i]) == 1 then
    redis.call('RPUSH', queue, ARGV[i])
  end
end
ring(queue)
"""
)
# ARGV: silence and stall in seconds, process, its queues. Any process reaps for all queues. A sign of life from the future, on a
# clock that went back, counts from now: else the dead would keep what they held until that time has come again.
REAP = (
    NOW
    + RING
    + """
for i = 4, #ARGV do
  redis.call('ZADD', beats, now, ARGV[3] .. '.' .. ARGV[i])
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', beats, now + ARGV[1], '+inf')) do
  redis.call('ZADD', beats, now, member)
end
local last = tonumber(redis.call('GET', KEYS[1] .. ':reaped') or 0)
redis.call('SET', KEYS[1] .. ':reaped', tostring(now))
if now - last > tonumber(ARGV[2]) then return {} end
local back = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', beats, '-inf', now - ARGV[1])) do
  local name = member:match('^[^.]+%.(.+)$')
  if name then
    local queue, acks = KEYS[1] .. ':' .. name, KEYS[1] .. ':__acks__.' .. member
    for _, id in ipairs(redis.call('SMEMBERS', acks)) do
      if redis.call('HEXISTS', queue .. '.msgs', id) == 1 then
        redis.call('RPUSH', queue, id)
        table.insert(back, id)
      end
    end
    redis.call('DEL', acks)
    ring(queue)
  end
  redis.call('ZREM', beats, member)
end
return back
"""
)


class Patience(Retry):
    """How often a client repeats: one for all its connections, so that a process told to stop ends repetitions under way."""

    def __deepcopy__(self, memo: object) -> "Patience":  # the library gives each connection a copy
        return self


def client(url: str, *, retries: int, timeout: float) -> "redis.Redis":
    """A client with explicit timeouts (seconds) and retries: redis-py's own defaults hold a call for up to a minute."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        retry=Patience(ExponentialBackoff(cap=0.5, base=0.01), retries),
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


class Acks:
    """What one process has fetched and not yet acked, by queue. All of it raises RedisError."""

    def __init__(self, client: "redis.Redis", process: str) -> None:
        self._client, self.process = client, process
        self._scripts = {text: client.register_script(text) for text in (FETCH, ACK, GIVE_BACK, REAP)}

    def fetch(self, queue: str, most: int) -> list[tuple[bytes, bytes]]:
        """Ids and bodies, oldest first; they are this process' until it acks them, gives them back or falls silent."""
        found = self._call(FETCH, self.process, queue, most)
        return list(zip(found[::2], found[1::2], strict=True))

    def ack(self, queue: str, identifier: bytes | str) -> None:
        self._call(ACK, self.process, queue, identifier)

    def give_back(self, queue: str, identifiers: Sequence[bytes | str]) -> None:
        """To the end of the queue, for whoever fetches next."""
        self._call(GIVE_BACK, self.process, queue, *identifiers)

    def reap(self, queues: Sequence[str]) -> int:
        """A sign of life for these queues; then what silent processes held goes back. How many references that were."""
        return len(self._call(REAP, SILENCE, STALL, self.process, *queues))

    def held(self, queue: str) -> set[bytes]:
        """What Redis believes this process to hold."""
        found: Any = self._client.smembers(f"{NAMESPACE}:__acks__.{self.process}.{queue}")
        return set(found)

    def _call(self, script: str, *arguments: Any) -> Any:
        return self._scripts[script](keys=[NAMESPACE], args=list(arguments))


class RedisHome:
    """What Redis says of itself before a process starts: what it evicts, and whose it is. Raises Unavailable."""

    def __init__(self, url: str) -> None:
        self._client = client(url, retries=1, timeout=2.0)

    def eviction(self) -> str:
        """`maxmemory-policy`; empty where neither INFO nor CONFIG may be asked."""
        with answering():
            for ask, key in (
                (lambda: self._client.info("memory"), "maxmemory_policy"),
                (lambda: self._client.config_get("maxmemory-policy"), "maxmemory-policy"),
            ):
                with suppress(ResponseError):
                    found: Any = ask()
                    if key in found:
                        return str(found[key])
        return ""

    def adopt(self, installation: UUID) -> str:
        """The id of the installation this Redis belongs to: from now on ours, if it belonged to none."""
        key = f"{NAMESPACE}:installation"
        with answering():
            self._client.set(key, str(installation), nx=True)
            found: Any = self._client.get(key)
        return (found or b"").decode(errors="backslashreplace")

    def close(self) -> None:
        self._client.close()


@contextmanager
def answering() -> Iterator[None]:
    """Raises Unavailable instead of the client's errors."""
    try:
        yield
    except RedisError as error:
        raise Unavailable(f"Redis does not answer: {error}") from error


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
        with answering():
            return bool(self._push(keys=[f"{NAMESPACE}:epoch"], args=arguments))

    def alive(self) -> bool:
        with answering():
            return not self._client.set(f"{NAMESPACE}:epoch", int(self._clock() * 1000), nx=True)

    def close(self) -> None:
        self._client.close()
