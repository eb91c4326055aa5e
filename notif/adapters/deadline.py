"""httpcore's network layer by the instant at which a call ends (ADR 0005).

httpcore hands a time-out to every single socket operation. Here that value is the *instant* at which the call ends, and
each operation gets what is left until then: a server that drips a byte a second can't make a call outlive its lease.
"""

import queue
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore

Clock = Callable[[], float]
"""Seconds from any origin, never going back."""
Resolve = Callable[[str, int], list[tuple[Any, ...]]]
"""Like `socket.getaddrinfo`: host and port to (family, type, protocol, name, address)."""


class DeadlineBackend(httpcore.NetworkBackend):
    """Connects by an instant instead of a time-out."""

    def __init__(self, clock: Clock, resolve: Resolve) -> None:
        self._clock = clock
        self._resolve = resolve

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        del local_address, socket_options  # our pool sets neither
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            addresses = self._look_up(host, port, _left(timeout, self._clock))
            failure: OSError = OSError(f"{host} has no address")
            for index, address in enumerate(addresses):
                # One address that swallows packets must leave time for the next.
                share = _left(timeout, self._clock) / (len(addresses) - index)
                try:
                    return _Stream(_dial(address, share), self._clock)
                except OSError as error:
                    failure = error
            raise failure

    def _look_up(self, host: str, port: int, seconds: float) -> list[tuple[Any, ...]]:
        answer: queue.SimpleQueue[list[tuple[Any, ...]] | OSError] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                answer.put(self._resolve(host, port))
            except OSError as error:
                answer.put(error)

        # getaddrinfo knows no time-out and can't be interrupted; a thread that is too late is left to end by itself.
        threading.Thread(target=look_up, name="notif-resolve", daemon=True).start()
        try:
            found = answer.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"{host} was not resolved in {seconds:.1f} s") from None
        if isinstance(found, OSError):
            raise found
        return found


class _Stream(httpcore.NetworkStream):
    """A socket whose operations take an instant instead of a time-out."""

    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        self._sock = sock
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _mapped(httpcore.ReadTimeout, httpcore.ReadError):
            self._sock.settimeout(_left(timeout, self._clock))
            return self._sock.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _mapped(httpcore.WriteTimeout, httpcore.WriteError):
            view = memoryview(buffer)
            while view:
                self._sock.settimeout(_left(timeout, self._clock))
                view = view[self._sock.send(view) :]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            try:
                self._sock.settimeout(_left(timeout, self._clock))
                # The handshake as a whole is bounded by the socket's time-out (Modules/_ssl.c keeps a deadline).
                return _Stream(ssl_context.wrap_socket(self._sock, server_hostname=server_hostname), self._clock)
            except BaseException:
                self._sock.close()
                raise

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # an idle connection that is readable was closed by the server
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)  # select.select() fails for descriptors over 1,023
            return bool(poll.poll(0))
        if info == "socket":
            return self._sock
        return None


def getaddrinfo(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _dial(address: tuple[Any, ...], seconds: float) -> socket.socket:
    sock = socket.socket(*address[:3])
    try:
        sock.settimeout(seconds)
        sock.connect(address[4])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _left(end: float | None, clock: Clock) -> float:
    assert end is not None, "every call has a deadline"
    left = end - clock()
    if left <= 0:  # settimeout(0) would mean non-blocking
        raise TimeoutError("the time is up")
    return left


@contextmanager
def _mapped(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise broken(str(error)) from error
