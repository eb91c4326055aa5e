"""Real servers that misbehave, and HTTP by hand."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Key and certificate for localhost, made for these tests."""


class RawServer:
    """Runs `script` on each connection, in a thread of its own; `connections` counts them.

    `polite`: the first request of a connection is answered before, so that a test can connect at leisure.
    """

    def __init__(self, script: Callable[[socket.socket], None], tls: bool = False, polite: bool = False) -> None:
        self._script = script
        self._polite = polite
        self._tls = tls
        self.connections = 0
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def url(self, path: str = "/") -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> "RawServer":
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(10)
        self._listener.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def drip(self, sock: socket.socket, data: bytes, gap: float = 0.05) -> None:
        """A byte every `gap` seconds, until the client has had enough."""
        for byte in data:
            if self.stopping.wait(gap):
                return
            sock.sendall(bytes([byte]))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            thread = threading.Thread(target=self._run, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _run(self, plain: socket.socket) -> None:
        with ExitStack() as stack, suppress(OSError):
            sock = stack.enter_context(plain)
            if self._tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(CERTIFICATE)
                sock = stack.enter_context(context.wrap_socket(sock, server_side=True))
                self._open.append(sock)
            if self._polite:
                read_request(sock)
                sock.sendall(response(b"{}"))
            self._script(sock)


def read_request(sock: socket.socket) -> tuple[list[str], bytes]:
    """Head lines and body of one request; OSError if the client went away."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")), 0)
    while len(body) < length:
        body += _more(sock)
    return lines, body


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole response; JSON unless `headers` name another content type."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    if not any(line.lower().startswith("content-type") for line in headers):
        lines.append("content-type: application/json")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """A script that keeps the connection alive and gives every request the same answer."""

    def script(sock: socket.socket) -> None:
        while True:
            read_request(sock)
            sock.sendall(answer)

    return script


def ignoring(sock: socket.socket) -> None:
    """A script that reads nothing and says nothing until the client hangs up."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll(60_000)


def closed_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def blackhole() -> Iterator[int]:
    """A port whose packets vanish: its backlog is full, so the kernel drops every further SYN."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise ConnectionError("the client went away")
    return data
