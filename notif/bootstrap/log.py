"""Logs: one line an event on stderr, JSON unless a person is looking. Never a payload, an address or a secret.

Warnings and errors that repeat themselves are counted, not written again and again: an outage is not a line a job.
"""

import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from notif.bootstrap.repeats import Later, Repeats, Told, on_a_thread
from notif.ports import Log

ADDRESS = re.compile(r"""[^\s"'`<>()\[\]{},;:\\]+@[^\s"'`<>()\[\]{},;:\\]+""")
"""Of a person, or the end of a password in a URL."""
HIDDEN = "[address]"
ALWAYS = frozenset({"alert", "circuit opened", "Redis was wiped"})
"""Written each time: somebody is to come, or the state of everything has changed."""
APART = ("queue", "queues", "provider", "consumer")
"""Fields by which lines of one event are told apart; a job's id isn't one."""
PASSING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4,}")
"""What makes two errors of one kind read differently: ids, ports, process numbers. A status of three digits stays."""


def make_log(
    stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic, later: Later = on_a_thread
) -> Log:
    """A logger of its own: nothing global is configured, so a product's logging stays as it is."""
    out = stream or sys.stderr
    return OnceLog(_plain(out), clock, later)


def _plain(out: TextIO) -> Log:
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if out.isatty() else structlog.processors.JSONRenderer()
    )
    return cast(
        Log,
        structlog.wrap_logger(
            structlog.PrintLogger(out),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.ExceptionRenderer(formatted),
                _without_addresses,
                renderer,
            ],
        ),
    )


def quiet_libraries() -> None:
    """In a process of ours: what libraries log from warnings on, to stderr.

    In place of what Dramatiq's command line has set up: that tells whatever an exception says.
    """
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)


def tell_rest(log: Log) -> None:
    """Before a process ends: what has been counted and not told yet, of ours and of the libraries."""
    for each in (log, *logging.getLogger().handlers):
        if isinstance(each, OnceLog | _LibraryHandler):
            each.repeats.rest()


class OnceLog:
    """A Log that writes the first of a kind at once, and then, every now and then, one with how many were left out.

    `repeated`: that many others, the first at `since`. A kind: event, level, kind of error, and the fields of APART.
    """

    def __init__(self, plain: Log, clock: Callable[[], float], later: Later) -> None:
        self._plain = plain
        self.repeats: Repeats[tuple[str, str, dict[str, object]]] = Repeats(self._tell_late, clock, later)

    def info(self, event: str, **values: object) -> object:
        """Never counted: what starts, stops and goes on again."""
        return self._write("info", event, values)

    def warning(self, event: str, **values: object) -> object:
        return self._say("warning", event, values, _kind(values.get("error")))

    def error(self, event: str, **values: object) -> object:
        return self._say("error", event, values, _kind(values.get("error")))

    def exception(self, event: str, **values: object) -> object:
        return self._say("exception", event, values, _kind(sys.exc_info()[1]))

    def _say(self, level: str, event: str, values: dict[str, object], kind: str) -> object:
        if event in ALWAYS:
            return self._write(level, event, values)
        key = (level, event, kind, *(str(values.get(name)) for name in APART))
        late = ("error", event, {**values, "exception": kind}) if level == "exception" else (level, event, values)
        told = self.repeats.one(key, late)
        return told and self._write(level, event, {**values, **(_left_out(told) if told.left_out else {})})

    def _tell_late(self, told: Told[tuple[str, str, dict[str, object]]]) -> None:
        level, event, values = told.item
        self._write(level, event, {**values, **_left_out(told)})

    def _write(self, level: str, event: str, values: dict[str, object]) -> object:
        with suppress(OSError):  # a full disk must not fail the job that is told of
            return getattr(self._plain, level)(event, **values)
        return None


def _left_out(told: Told[Any]) -> dict[str, object]:
    since = datetime.now(UTC) - timedelta(seconds=told.seconds)
    return {"repeated": told.left_out, "since": since.isoformat(timespec="milliseconds").replace("+00:00", "Z")}


def _kind(error: object) -> str:
    """Of an exception: its type, and if it is ours how its words begin. Of words: how they begin."""
    if isinstance(error, BaseException):
        name = type(error).__qualname__
        return f"{name}: {_kind(str(error))}" if _ours(error) else name
    return PASSING.sub("#", str(error or "").partition(":")[0])[:80]


def _ours(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] == "notif"


def formatted(exc_info: Any) -> str:
    """Where an exception came from, and its kind; its words only if they are ours.

    Others' quote what they stumbled over: a KeyError the key, a validation error the whole input. That is somebody's mail.
    """
    return "\n".join(_told(exc_info[1], set()))


def _told(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _told(before, seen)
        yield "which led to:"
    yield "".join(traceback.format_tb(error.__traceback__)).rstrip()
    name = type(error).__qualname__
    yield f"{name}: {error}" if _ours(error) else name


def _without_addresses(_logger: object, _method: str, event: Any) -> Any:
    return {key: _hidden(value) for key, value in event.items()}


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return ADDRESS.sub(HIDDEN, value)
    return [_hidden(each) for each in value] if isinstance(value, list | tuple) else value


class _Discreet(logging.Formatter):
    """Says no more of what libraries tell than our own log would."""

    def format(self, record: logging.LogRecord) -> str:
        return ADDRESS.sub(HIDDEN, super().format(record))

    def formatException(  # noqa: N802 - the library's name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return formatted(ei) if ei[1] else ""


class _LibraryHandler(logging.StreamHandler[TextIO]):
    """The same for libraries, whose kinds are logger, level, the message before its values, and the type of the exception."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Discreet("%(levelname)s %(name)s %(message)s"))
        self.repeats: Repeats[logging.LogRecord] = Repeats(self._tell, time.monotonic, on_a_thread)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        try:
            told = self.repeats.one((record.name, record.levelno, str(record.msg), error), _bare(record))
        except Exception:  # noqa: BLE001 - a message that doesn't fit its values
            self.handleError(record)
            return
        if told:
            super().emit(_bare(record, told, exc_info=record.exc_info) if told.left_out else record)

    def _tell(self, told: Told[logging.LogRecord]) -> None:
        assert self.lock
        with self.lock:
            super().emit(_bare(told.item, told))


def _bare(record: logging.LogRecord, told: Told[Any] | None = None, exc_info: Any = None) -> logging.LogRecord:
    """Without what an exception holds on to; with how many were left out."""
    said = record.getMessage()
    if told:
        said += "".join(f" {name}={value}" for name, value in _left_out(told).items())
    named = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
    return logging.makeLogRecord({**named, "msg": said, "args": None, "exc_info": exc_info})
