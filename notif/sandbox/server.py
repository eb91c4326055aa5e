"""The sandbox as a whole: Resend's and Better Stack's surfaces on one port, faults, and the addresses to control it."""

import hashlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from notif.errors import nearest
from notif.sandbox.betterstack import PATH, BetterStackSurface
from notif.sandbox.faults import Fault, Script
from notif.sandbox.log import Abandoned, Entry, Holds, Log
from notif.sandbox.mailbox import Mailbox
from notif.sandbox.resend import Limits, ResendSurface
from notif.sandbox.wire import Outcome, Reply, Request, Reset, WireServer, json_reply

CONTROL = "/_sandbox"


class Sandbox:
    """Stand-ins for outside services over HTTP. Point RESEND_API_URL and BETTERSTACK_URL at `url`.

    Port 0 takes a free one. With `journal`, mails and keys outlive a restart. `clock` is unix time in seconds.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        journal: Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._mailbox = Mailbox(clock, journal)
        self._limits = Limits(clock)
        self._resend = ResendSurface(self._mailbox, self._limits)
        self._incidents = BetterStackSurface(clock)
        self._script = Script()
        self._log = Log()
        self._holds = Holds()
        self._server = WireServer(host, port, self._answer)
        self._url: str | None = None
        self._controls: dict[str, Callable[[Request], Any]] = {
            "GET /_sandbox": self._counts,
            "DELETE /_sandbox": self._reset,
            "GET /_sandbox/mails": lambda request: [mail.view() for mail in self._mailbox.after(_after(request))],
            "GET /_sandbox/requests": lambda request: self._log.after(_after(request)),
            "GET /_sandbox/incidents": lambda _: self._incidents.all(),
            "PUT /_sandbox/faults": lambda request: {"faults": self._script.replace(request.json())},
            "PUT /_sandbox/limits": lambda request: self._limits.change(request.json()),
            "PUT /_sandbox/release": lambda _: {"released": self._holds.release()},
        }

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        assert self._url, "the sandbox was not started"
        return self._url

    def start(self) -> Self:
        """Raises OSError if the port is taken."""
        host, port = self._server.start()
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    def stop(self) -> None:
        """Close the port; held and slow requests end without effect."""
        self._holds.abandon(close=True)
        self._server.stop()
        self._mailbox.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer(self, request: Request) -> Outcome:
        if request.path == CONTROL or request.path.startswith(f"{CONTROL}/"):
            return self._control(request)
        fault = self._script.take(request)
        digest = hashlib.sha256(request.body).hexdigest()
        key = request.headers.get("idempotency-key")
        name = fault.fault if fault else None
        entry = self._log.add(Entry(0, self._clock(), request.method, request.path, key, digest, name))
        try:
            outcome = self._play(request, fault, entry)
        except Abandoned:
            return Reset()
        if isinstance(outcome, Reply):
            entry.status = outcome.status
        return outcome

    def _play(self, request: Request, fault: Fault | None, entry: Entry) -> Outcome:
        if fault is None:
            return self._surface(request, lambda: None)
        reply = None
        if fault.takes_effect:
            reply = self._surface(request, lambda: self._delay(fault, entry))
        if fault.fault == "hold":
            self._holds.wait(entry)
        return fault.outcome(reply)

    def _delay(self, fault: Fault, entry: Entry) -> None:
        if fault.fault == "latency":
            self._holds.wait(entry, fault.seconds)
        elif fault.fault == "hold_before":
            self._holds.wait(entry)

    def _surface(self, request: Request, pause: Callable[[], None]) -> Reply:
        surface = self._incidents if request.path.startswith(PATH) else self._resend
        return surface.handle(request, pause)

    def _control(self, request: Request) -> Reply:
        asked = f"{request.method} {request.path}"
        control = self._controls.get(asked)
        if control is None:
            return json_reply(404, {"message": f"{asked}: not known here; {nearest(asked, self._controls)}"})
        try:
            return json_reply(200, control(request))
        except ValueError as error:
            return json_reply(422, {"message": str(error)})

    def _counts(self, _: Request) -> dict[str, int]:
        return {
            "mails": self._mailbox.count(),
            "requests": self._log.count(),
            "held": self._holds.count(),
            "incidents": len(self._incidents.all()),
        }

    def _reset(self, _: Request) -> dict[str, bool]:
        self._script.replace([])
        self._holds.abandon()
        self._limits.clear()
        for part in (self._mailbox, self._log, self._incidents):
            part.clear()
        return {"reset": True}


def serve(host: str, port: int, journal: Path | None = None, *, ready: Callable[[str], None] | None = None) -> None:
    """Run a sandbox until SIGTERM or SIGINT in the main thread. `ready` gets its URL. Raises OSError: port taken."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with Sandbox(host, port, journal) as sandbox:
        if ready:
            ready(sandbox.url)
        stopped.wait()


def _after(request: Request) -> int:
    after = request.query.get("after", "0")
    if not after.isdecimal():
        raise ValueError("after: must be a number, that of the last entry already seen")
    return int(after)
