"""HTTP/1.1 on bare sockets, one thread per connection: a stand-in must be able to break an answer anywhere."""

import json
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, unquote

MAX_HEAD = 64 * 1024
"""Bytes of a request's first line and headers."""
MAX_BODY = 45 * 1024 * 1024
"""Bytes of a request's body: Resend takes 40 MB."""
IDLE_SECONDS = 300.0
"""A connection on which nothing comes for longer is closed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names in lower case, query values decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Raises ValueError."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `cut`: only half of the body is sent, then the connection is closed."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """No answer: the connection is reset."""


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer, and the connection stays open until the client closes it."""


Outcome = Reply | Reset | Silence


def json_reply(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    body = json.dumps(value, separators=(",", ":")).encode()
    return Reply(status, body, {"content-type": "application/json; charset=utf-8", **(headers or {})})


class Malformed(Exception):
    """Not an HTTP request this server reads; the text says why."""


class WireServer:
    """Serves `handler` on a thread per connection, keep-alive and TCP_NODELAY. Port 0 takes a free one."""

    def __init__(self, host: str, port: int, handler: Callable[[Request], Outcome]) -> None:
        self._address = (host, port)
        self._handler = handler
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._acceptor: threading.Thread | None = None

    def start(self) -> tuple[str, int]:
        """Listen; the address that was bound. Raises OSError if it is taken."""
        listener = socket.create_server(self._address, backlog=512)
        self._waker, woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept, args=(listener, woken), name="sandbox", daemon=True)
        self._acceptor.start()
        host, port = listener.getsockname()[:2]
        return host, port

    def stop(self) -> None:
        """Close the port and every connection; what is being handled gets no answer."""
        if self._acceptor is None:
            return
        self._waker.close()
        self._acceptor.join()
        self._acceptor = None
        with self._lock:
            open_now = list(self._connections.items())
        for sock, _ in open_now:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for _, thread in open_now:
            thread.join(5)

    def _accept(self, listener: socket.socket, woken: socket.socket) -> None:
        with listener, woken, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if woken in ready:
                    return
                with suppress(OSError):
                    sock, _ = listener.accept()
                    thread = threading.Thread(target=self._serve, args=(sock,), name="sandbox-connection", daemon=True)
                    with self._lock:
                        self._connections[sock] = thread
                    thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, sock.makefile("rb") as stream, suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(IDLE_SECONDS)
                self._converse(sock, stream)
        finally:
            with self._lock:
                del self._connections[sock]

    def _converse(self, sock: socket.socket, stream: BinaryIO) -> None:
        try:
            while (request := _read_request(sock, stream)) is not None:
                if not _send(sock, request, self._handler(request)):
                    return
        except Malformed as problem:
            sock.sendall(_encoded(json_reply(400, {"message": str(problem)}), close=True))


def _read_request(sock: socket.socket, stream: BinaryIO) -> Request | None:
    line = stream.readline(MAX_HEAD)
    if not line:
        return None
    parts = line.decode("latin-1").split()
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Malformed("not an HTTP/1.1 request")
    headers = _read_headers(stream)
    if parts[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    if "transfer-encoding" in headers:
        raise Malformed("a body needs content-length here, not transfer-encoding")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise Malformed(f"content-length must be a number up to {MAX_BODY}")
    if headers.get("expect", "").lower() == "100-continue":
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = stream.read(int(length))
    if len(body) < int(length):
        return None  # the client went away
    path, _, query = parts[1].partition("?")
    return Request(parts[0], unquote(path), dict(parse_qsl(query)), headers, body)


def _read_headers(stream: BinaryIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    while (line := stream.readline(MAX_HEAD)) not in (b"\r\n", b"\n"):
        size += len(line)
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or size > MAX_HEAD:
            raise Malformed("a header without a colon, or more than 64 KiB of them")
        headers[name.lower()] = value.strip()
    return headers


def _send(sock: socket.socket, request: Request, outcome: Outcome) -> bool:
    """Answer; True if the connection may serve another request."""
    match outcome:
        case Reset():
            # Linger 0: closing sends RST instead of FIN.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        case Silence():
            sock.settimeout(None)
            while sock.recv(64 * 1024):
                pass
            return False
    close = outcome.cut or request.headers.get("connection", "").lower() == "close"
    sock.sendall(_encoded(outcome, close=close))
    return not close


def _encoded(reply: Reply, *, close: bool) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}", f"content-length: {len(reply.body)}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if close:
        lines.append("connection: close")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + (reply.body[: len(reply.body) // 2] if reply.cut else reply.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
