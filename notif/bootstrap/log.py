"""Logs: one line an event on stderr, JSON unless a person is looking. Never a payload, an address or a secret."""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from notif.ports import Log

ADDRESS = re.compile(r"""[^\s"'`<>()\[\]{},;:\\]+@[^\s"'`<>()\[\]{},;:\\]+""")
"""Of a person, or the end of a password in a URL."""
HIDDEN = "[address]"


def make_log(stream: TextIO | None = None) -> Log:
    """A logger of its own: nothing global is configured, so a product's logging stays as it is."""
    out = stream or sys.stderr
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
    """In a process of ours: what libraries log from warnings on, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Discreet("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


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
    yield f"{name}: {error}" if type(error).__module__.split(".")[0] == "notif" else name


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
