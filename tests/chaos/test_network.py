"""The proxy, between a server that echoes and its clients."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaos.network import Network, Trouble
from tests.kit import eventually


@contextmanager
def echo() -> Iterator[tuple[int, list[str]]]:
    """A port, and what became of its connections."""
    ends: list[str] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    connection.sendall(data)
                ends.append("closed")
            except OSError:
                ends.append("reset")

    def listen() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield server.getsockname()[1], ends
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class Line:
    """Two processes on their ways to one server."""

    def __init__(self, network: Network, server: int) -> None:
        self.network = network
        self.ports = {name: network.link(name, "echo", ("127.0.0.1", server)) for name in ("a", "b")}

    def dial(self, name: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[name]), timeout=10)

    def dialled_and_heard(self, name: str) -> bytes:
        """Refused in either of the two moments: the kernel has accepted before the proxy looks."""
        with self.dial(name) as connection:
            return connection.recv(1)


@pytest.fixture
def line() -> Iterator[tuple[Line, list[str]]]:
    with echo() as (port, ends), Network() as network:
        yield Line(network, port), ends


def says(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(100)


def test_bytes_go_through_and_an_end_is_passed_on(line: tuple[Line, list[str]]) -> None:
    net, ends = line
    with net.dial("a") as a:
        assert says(a, b"hello") == b"hello"
    eventually(lambda: ends)


def test_cut_ends_connections_and_refuses_others_until_it_is_over(line: tuple[Line, list[str]]) -> None:
    net, _ = line
    with net.dial("a") as a, net.dial("b") as b:
        assert (says(a, b"1"), says(b, b"1")) == (b"1", b"1")
        net.network.begin("echo", "a", "cut", 0.0)
        with pytest.raises(ConnectionResetError):
            a.recv(1)
        with pytest.raises(ConnectionResetError):
            net.dialled_and_heard("a")
        assert says(b, b"2") == b"2"
    net.network.end("echo", "a")
    with net.dial("a") as a:
        assert says(a, b"3") == b"3"


def test_a_black_hole_gives_back_what_it_swallowed(line: tuple[Line, list[str]]) -> None:
    net, _ = line
    with net.dial("a") as a:
        assert says(a, b"1") == b"1"
        net.network.begin("echo", None, "blackhole", 0.0)
        a.sendall(b"2")
        a.settimeout(0.2)
        with pytest.raises(TimeoutError):
            a.recv(1)
        net.network.clear()
        a.settimeout(10)
        assert a.recv(1) == b"2"


def test_a_slow_way_delays_each_direction(line: tuple[Line, list[str]]) -> None:
    net, _ = line
    with net.dial("a") as a:
        net.network.begin("echo", "a", "delay", 0.1)
        began = time.monotonic()
        assert says(a, b"1") == b"1"
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("trouble", ["lost_by_server", "lost_by_client"])
def test_a_half_open_connection_hears_nothing_until_it_is_over(line: tuple[Line, list[str]], trouble: Trouble) -> None:
    net, ends = line
    with net.dial("a") as a:
        assert says(a, b"1") == b"1"
        net.network.begin("echo", "a", trouble, 0.0)
        if trouble == "lost_by_server":
            eventually(lambda: ends)
            a.sendall(b"2")
            a.settimeout(0.2)
            with pytest.raises(TimeoutError):
                a.recv(1)
        else:
            with pytest.raises(ConnectionResetError):
                a.recv(1)
            assert ends == []
        with net.dial("a") as other:
            assert says(other, b"3") == b"3"
            net.network.end("echo", "a")
            assert says(other, b"4") == b"4"
        a.settimeout(10)
        if trouble == "lost_by_server":
            with pytest.raises(ConnectionResetError):
                a.recv(1)
        eventually(lambda: ends)
