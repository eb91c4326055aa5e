"""The way from every process to Postgres and Redis: a small TCP proxy whose connections can be cut, slowed and lost.

What it can't do: withhold the kernel's own acknowledgements. To a process at its end a lost peer looks like one that hangs, so
keepalives and the TCP user time-out see nothing; a lost connection is therefore reset when its fault ends.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, Self, TypeVar

Trouble = Literal["cut", "delay", "blackhole", "lost_by_server", "lost_by_client"]
T = TypeVar("T")
CHUNK = 65536


def _reset(side: asyncio.StreamWriter) -> None:
    """Ended without a word: the other side gets a reset, and what was on its way is gone."""
    connection = side.get_extra_info("socket")
    if not side.transport.is_closing() and connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.transport.abort()


class _Pair:
    """One connection and its continuation."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.lost = False

    def reset(self) -> None:
        for side in (self.client, self.server):
            _reset(side)


class Link:
    """One process' way to one service. Everything here happens on the network's loop."""

    def __init__(self, process: str, service: str, target: tuple[str, int]) -> None:
        self.process, self.service, self._target = process, service, target
        self._pairs: set[_Pair] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._delay = 0.0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            _reset(writer)
            return
        await self._open.wait()
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(writer, server_writer)
        self._pairs.add(pair)
        with contextlib.suppress(asyncio.CancelledError):  # the end of all; asyncio's streams would complain of it
            await asyncio.gather(
                self._pump(pair, reader, server_writer), self._pump(pair, server_reader, writer)
            )  # fmt: skip
        self._pairs.discard(pair)
        for side in (writer, server_writer):
            side.close()

    async def _pump(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes in one direction, until either side ends; the other is ended with it."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._open.wait()
                if not pair.lost:
                    writer.write(data)
                    await writer.drain()
        if not pair.lost:  # of a lost one, the side that is left learns nothing
            writer.close()

    def begin(self, trouble: Trouble, seconds: float) -> None:
        """`seconds`: of `delay`, for every chunk of bytes in each direction."""
        match trouble:
            case "cut":
                self._refusing = True
                for pair in self._pairs:
                    pair.reset()
            case "delay":
                self._delay = seconds
            case "blackhole":
                self._open.clear()
            case "lost_by_server" | "lost_by_client":  # that side forgets it, the other hears nothing
                for pair in self._pairs:
                    pair.lost = True
                    _reset(pair.server if trouble == "lost_by_server" else pair.client)

    def end(self) -> None:
        """All is well again; what was lost is reset, as keepalives would have done."""
        self._refusing, self._delay = False, 0.0
        self._open.set()
        for pair in self._pairs:
            if pair.lost:
                pair.reset()


class Network:
    """All links, on a thread of their own. A context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._links: list[Link] = []
        self._listeners: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def link(self, process: str, service: str, target: tuple[str, int]) -> int:
        """The loopback port by which `process` reaches `service`."""

        async def listen() -> int:
            link = Link(process, service, target)
            self._links.append(link)
            listener = await asyncio.start_server(link.accept, "127.0.0.1", 0)
            self._listeners.append(listener)
            return int(listener.sockets[0].getsockname()[1])

        return self._on_loop(listen)

    def begin(self, service: str, process: str | None, trouble: Trouble, seconds: float) -> None:
        """Trouble on the way to a service, for one process or all of them."""
        self._each(self._of(service, process), lambda link: link.begin(trouble, seconds))

    def end(self, service: str, process: str | None) -> None:
        self._each(self._of(service, process), Link.end)

    def clear(self) -> None:
        """No trouble anywhere."""
        self._each(self._links, Link.end)

    def _of(self, service: str, process: str | None) -> list[Link]:
        return [link for link in self._links if link.service == service and process in (None, link.process)]

    def _each(self, links: Iterable[Link], do: Callable[[Link], None]) -> None:
        async def all_of_them() -> None:
            for link in links:
                do(link)

        self._on_loop(all_of_them)

    def _on_loop(self, work: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
