"""One deadline bounds the whole exchange, whatever the other side does (interleavings, letter l)."""

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from notif.adapters.http import MAX_BODY, DeadlineExceeded, Interrupted, NotConnected, PooledHttp
from tests.provider.servers import (
    CERTIFICATE,
    RawServer,
    answering,
    blackhole,
    closed_port,
    ignoring,
    read_request,
    response,
)

SHORT = 0.4
"""Seconds of deadline; every script here would go on for much longer than BOUND."""
BOUND = 10.0
HEAD = b"HTTP/1.1 200 OK\r\nx-pad: " + b"x" * 1000


@contextmanager
def bounded() -> Iterator[None]:
    """What is inside ended by its deadline, not by the end of the script."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < BOUND


@contextmanager
def late_at(script: Callable[[socket.socket], None], http: PooledHttp, tls: bool = False) -> Iterator[RawServer]:
    """What is inside exceeds its deadline, on a connection that was made before."""
    with RawServer(script, tls, polite=True) as server:
        get(http, server.url(), 30)
        with bounded(), pytest.raises(DeadlineExceeded):
            yield server
        assert server.connections == 1


def get(http: PooledHttp, url: str, deadline: float = SHORT) -> bytes:
    return http.request("GET", url, {}, b"", deadline).body


@pytest.mark.parametrize(
    ("first", "dripped"),
    [
        pytest.param(b"", HEAD, id="headers drip"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", b"x" * 1000, id="body drips"),
        pytest.param(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 200, id="chunks drip"),
        pytest.param(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 40, id="interim answers without end"),
    ],
)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_dripping_server_is_left_at_the_deadline(first: bytes, dripped: bytes, tls: bool) -> None:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(first)
        server.drip(sock, dripped)

    http = PooledHttp(ssl_context=ssl.create_default_context(cafile=CERTIFICATE) if tls else None)
    with late_at(script, http, tls) as server:
        get(http, server.url(), SHORT)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_server_that_never_answers(tls: bool) -> None:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        server.stopping.wait(60)

    http = PooledHttp(ssl_context=ssl.create_default_context(cafile=CERTIFICATE) if tls else None)
    with late_at(script, http, tls) as server:
        get(http, server.url(), SHORT)


def test_a_server_that_never_reads(http: PooledHttp) -> None:
    with late_at(ignoring, http) as server:
        http.request("POST", server.url(), {}, b"x" * 32_000_000, SHORT)


def test_a_server_that_reads_drop_by_drop(http: PooledHttp) -> None:
    def script(sock: socket.socket) -> None:
        while sock.recv(4096):
            time.sleep(0.05)

    with late_at(script, http) as server:
        http.request("POST", server.url(), {}, b"x" * 32_000_000, SHORT)


def test_nobody_listens(http: PooledHttp) -> None:
    with bounded(), pytest.raises(NotConnected):
        get(http, f"http://127.0.0.1:{closed_port()}/", 30)


def test_packets_vanish(http: PooledHttp) -> None:
    with blackhole() as port, bounded(), pytest.raises(NotConnected):
        get(http, f"http://127.0.0.1:{port}/")


def test_the_handshake_hangs(http: PooledHttp) -> None:
    with RawServer(ignoring) as server, bounded(), pytest.raises(NotConnected):
        get(http, f"https://127.0.0.1:{server.port}/")


def test_an_untrusted_certificate_is_refused_before_anything_is_sent(http: PooledHttp) -> None:
    with RawServer(answering(response(b"{}")), tls=True) as server, pytest.raises(NotConnected, match="certificate"):
        get(http, server.url(), 30)


def test_a_name_that_is_not_resolved_in_time() -> None:
    released = threading.Event()

    def resolve(host: str, port: int) -> list[tuple[object, ...]]:
        released.wait(60)
        return []

    with bounded(), pytest.raises(NotConnected, match=r"slow\.test"):
        get(PooledHttp(resolve=resolve), "http://slow.test/")
    released.set()


def test_a_name_that_does_not_exist(http: PooledHttp) -> None:
    with bounded(), pytest.raises(NotConnected):
        get(http, "http://nowhere.invalid/", 5)


def test_a_dead_address_leaves_time_for_the_next() -> None:
    with blackhole() as dead, RawServer(answering(response(b"{}"))) as server:

        def resolve(host: str, port: int) -> list[tuple[object, ...]]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            return [(*kind, ("127.0.0.1", dead)), (*kind, ("127.0.0.1", server.port))]

        http = PooledHttp(resolve=resolve)
        assert get(http, "http://two.test/", 3) == b"{}"
        http.close()


def test_no_time_at_all_sends_nothing(http: PooledHttp) -> None:
    with RawServer(answering(response(b"{}"))) as server:
        with pytest.raises(NotConnected):
            get(http, server.url(), 0)
        assert server.connections == 0


def test_the_wait_for_a_free_connection_counts() -> None:
    asked = threading.Event()

    def script(sock: socket.socket) -> None:
        read_request(sock)
        asked.set()
        server.stopping.wait(60)

    http = PooledHttp(connections=1)
    with RawServer(script) as server, bounded():
        caught: list[Exception] = []
        busy = threading.Thread(target=_catching(lambda: get(http, server.url(), 5), caught))
        busy.start()
        assert asked.wait(BOUND)
        with pytest.raises(NotConnected, match="free"):
            get(http, server.url(), 0.2)
        server.stopping.set()
        busy.join()
    assert [type(error) for error in caught] == [Interrupted]
    assert server.connections == 1


def test_every_call_has_its_own_deadline(http: PooledHttp) -> None:
    asked = threading.Barrier(2)
    late = threading.Event()

    def script(sock: socket.socket) -> None:
        lines, _ = read_request(sock)
        asked.wait(BOUND)
        if "patient" in lines[0]:
            late.wait(BOUND)
            sock.sendall(response(b"at last"))
        else:
            server.stopping.wait(60)

    bodies: list[bytes] = []
    with RawServer(script) as server:
        patient = threading.Thread(target=lambda: bodies.append(get(http, server.url("/patient"), 30)))
        patient.start()
        with pytest.raises(DeadlineExceeded):
            get(http, server.url("/hasty"), 2)
        late.set()
        patient.join()
    assert bodies == [b"at last"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-le", id="half a head"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", id="half a body"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="not HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_BODY + 1), id="too much"),
    ],
)
def test_a_broken_answer_is_interrupted(http: PooledHttp, answer: bytes) -> None:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(answer)

    with RawServer(script) as server, pytest.raises(Interrupted) as caught:
        get(http, server.url(), 30)
    assert not isinstance(caught.value, DeadlineExceeded)


def test_the_largest_body_comes_through(http: PooledHttp) -> None:
    with RawServer(answering(response(b"x" * MAX_BODY))) as server:
        assert len(get(http, server.url(), 30)) == MAX_BODY


def test_a_connection_the_server_closed_is_not_used_again(http: PooledHttp) -> None:
    closed = threading.Semaphore(0)

    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(response(b"{}"))
        sock.shutdown(socket.SHUT_RDWR)
        closed.release()

    with RawServer(script) as server:
        for _ in range(3):
            assert get(http, server.url(), 30) == b"{}"
            assert closed.acquire(timeout=BOUND)
        assert server.connections == 3


def test_an_idle_connection_is_used_again_after_an_error_answer(http: PooledHttp) -> None:
    with RawServer(answering(response(b"{}", "500 Oops"))) as server:
        assert [http.request("POST", server.url(), {}, b"{}", 30).status for _ in range(5)] == [500] * 5
        assert server.connections == 1


def test_header_names_come_in_lower_case(http: PooledHttp) -> None:
    with RawServer(answering(response(b"{}", "200 OK", "Retry-AFTER: 7"))) as server:
        assert http.request("GET", server.url(), {}, b"", 30).headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://127.0.0.1/", {}),
        ("127.0.0.1", {}),
        ("http:///x", {}),
        ("", {}),
        ("ok", {"x": "a\nb"}),
        ("ok", {"x": "é"}),
    ],
)
def test_a_malformed_request_is_our_mistake(http: PooledHttp, url: str, headers: dict[str, str]) -> None:
    with RawServer(answering(response(b"{}"))) as server, pytest.raises(ValueError, match=r"malformed|URL|ascii"):
        http.request("GET", server.url() if url == "ok" else url, headers, b"", 5)


FORK = """
import os, sys
from notif.adapters.http import PooledHttp
http = PooledHttp()
ask = lambda: http.request("GET", sys.argv[1], {}, b"", 30).status
assert ask() == 200
child = os.fork()
assert ask() == ask() == 200
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_shares_no_connection() -> None:
    with RawServer(answering(response(b"{}"))) as server:
        subprocess.run([sys.executable, "-c", FORK, server.url()], check=True, timeout=60)
        assert server.connections == 2


def _catching(act: Callable[[], object], caught: list[Exception]) -> Callable[[], None]:
    def run() -> None:
        try:
            act()
        except Exception as error:
            caught.append(error)

    return run
