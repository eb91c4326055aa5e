"""Logs: one line an event on stderr, JSON unless a person is looking. Never a payload, an address or a secret."""

import logging
import sys
from typing import TextIO, cast

import structlog

from notif.ports import Log


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
                structlog.processors.format_exc_info,
                renderer,
            ],
        ),
    )


def quiet_libraries() -> None:
    """In a process of ours: what libraries log from warnings on, to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
