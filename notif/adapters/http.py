"""A pooled HTTP/1.1 client whose every call ends by one deadline (ADR 0005)."""

import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpcore

from notif.adapters.deadline import Clock, DeadlineBackend, Resolve, getaddrinfo

MAX_BODY = 1024 * 1024
"""Bytes of a response's body; more is not read."""
IDLE_SECONDS = 15.0
"""A connection idle for longer is not used again: well under the 60 s after which usual load balancers close one."""


class TransportError(Exception):
    """No whole response came back."""


class NotConnected(TransportError):
    """No connection was made: certain that nothing was sent."""


class Interrupted(TransportError):
    """It failed after the connection was there: whether the request was received is not known."""


class DeadlineExceeded(Interrupted):
    """The time was up before the response was whole."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class PooledHttp:
    """At most `connections` calls at a time over kept-alive connections. Thread-safe; no I/O until the first call.

    Every process gets a pool of its own, so one may be built before a fork. `clock` counts seconds from any origin.
    """

    def __init__(
        self,
        connections: int = 16,
        *,
        clock: Clock = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._ssl_context = ssl_context
        self._backend = DeadlineBackend(clock, resolve or getaddrinfo)
        self._pools: dict[int, _Pool] = {}

    def request(self, method: str, url: str, headers: Mapping[str, str], content: bytes, deadline: float) -> Response:
        """One exchange in at most `deadline` seconds, waiting for a free connection included.

        Raises NotConnected, Interrupted or DeadlineExceeded; ValueError, nothing being sent, for a bad URL or header.
        """
        end = self._clock() + deadline
        pool = self._pool()
        if deadline <= 0 or not pool.places.acquire(timeout=deadline):
            raise NotConnected(f"no connection was free within {max(deadline, 0):.1f} s")
        try:
            with _explained(deadline):
                return self._exchange(pool, (method, url, headers, content), end)
        finally:
            pool.places.release()

    def close(self) -> None:
        """Close this process' idle connections. A later call opens new ones."""
        pool = self._pools.pop(os.getpid(), None)
        if pool:
            pool.close()

    def _pool(self) -> "_Pool":
        # No lock: one held in another thread while the process forks would stay locked in the child for ever.
        found = self._pools.get(os.getpid())
        if found is None:
            found = self._pools.setdefault(os.getpid(), _Pool(self._connections, self._ssl_context, self._backend))
        return found

    @staticmethod
    def _exchange(pool: "_Pool", call: tuple[str, str, Mapping[str, str], bytes], end: float) -> Response:
        method, url, headers, content = call
        timeouts = {"connect": end, "read": end, "write": end}
        sent = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        target = httpcore.URL(url)
        if target.scheme not in (b"http", b"https") or not target.host:
            raise ValueError(f"the URL must begin with http:// or https:// and name a host, not {url!r}")
        with (
            pool.connection(target.origin) as connection,
            connection.stream(
                method.upper(), target, headers=sent, content=content, extensions={"timeout": timeouts}
            ) as response,
        ):
            received = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return Response(response.status, received, _read(response.iter_stream()))


class _Pool:
    """Idle connections, each of them one caller's alone while it is out of here.

    Not `httpcore.ConnectionPool`: that one hands connections out while they still look idle to its other callers, who
    may then find one readable (its answer has come), take it for dead and close it under the call.
    """

    def __init__(self, connections: int, ssl_context: ssl.SSLContext | None, backend: "DeadlineBackend") -> None:
        self.places = threading.BoundedSemaphore(connections)
        self._ssl_context = ssl_context
        self._backend = backend
        self._idle: dict[tuple[bytes, bytes, int], deque[httpcore.HTTPConnection]] = {}

    @contextmanager
    def connection(self, origin: httpcore.Origin) -> Iterator[httpcore.HTTPConnection]:
        idle = self._idle.setdefault((origin.scheme, origin.host, origin.port), deque())
        connection = self._reuse(idle) or self._new(origin)
        try:
            yield connection
        finally:
            if connection.is_idle():
                idle.append(connection)
            else:
                connection.close()

    def _new(self, origin: httpcore.Origin) -> httpcore.HTTPConnection:
        if self._ssl_context is None and origin.scheme == b"https":
            self._ssl_context = httpcore.default_ssl_context()  # reads the certificates: once, not per connection
        return httpcore.HTTPConnection(
            origin, ssl_context=self._ssl_context, keepalive_expiry=IDLE_SECONDS, network_backend=self._backend
        )

    @staticmethod
    def _reuse(idle: "deque[httpcore.HTTPConnection]") -> httpcore.HTTPConnection | None:
        with suppress(IndexError):
            while True:
                connection = idle.pop()  # the one used last is the least likely to have been closed
                if not connection.has_expired():
                    return connection
                connection.close()
        return None

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


def _read(chunks: Iterator[bytes]) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > MAX_BODY:
            raise Interrupted(f"the response is larger than {MAX_BODY:,} bytes")
    return bytes(body)


@contextmanager
def _explained(deadline: float) -> Iterator[None]:
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise NotConnected(f"no connection: {error}") from error
    except (httpcore.ReadTimeout, httpcore.WriteTimeout) as error:
        raise DeadlineExceeded(f"no whole response within {deadline:.1f} s") from error
    except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
        raise Interrupted(f"the connection broke: {error}") from error
    except (httpcore.LocalProtocolError, httpcore.UnsupportedProtocol) as error:
        raise ValueError(f"the request is malformed: {error}") from error
