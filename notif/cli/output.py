"""What commands write: data on stdout, talk on stderr. Nothing that came from outside moves a terminal's cursor."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="For scripts.")]
"""The option of every command that a person would script."""
WIDE = 1_000
"""Columns where nobody looks: a pipe gets every line whole."""


def safe(value: object) -> str:
    """One line of text: control characters, line separators and bidirectional overrides become escapes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value))


def say(text: str) -> None:
    """Talk: to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """A line of data: to stdout."""
    sys.stdout.write(f"{text}\n")


def show_json(value: Any) -> None:
    """Data for scripts. UUIDs and times are text."""
    show(json.dumps(value, indent=2, default=_plain))


def show_line(value: Any) -> None:
    """One of several data for scripts, on a line of its own."""
    show(json.dumps(value, default=_plain))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Data for people: aligned columns, no frame; None is a dash."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else safe(readable(cell))) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else WIDE, highlight=False)
    with console.capture() as lines:
        console.print(table)
    show("\n".join(line.rstrip() for line in lines.get().splitlines()))


def show_history(moves: Iterable[Mapping[str, Any]]) -> None:
    """A job's moves, oldest first; nothing if there is none."""
    rows = [(_moment(move.get("at")), move.get("state"), move.get("note") or "") for move in moves]
    if rows:
        show_table(("AT", "STATE", "NOTE"), rows)


def readable(value: object) -> str:
    """A time to the second, in UTC; anything else as it is."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    return str(value)


def _moment(value: Any) -> str:
    try:
        return readable(datetime.fromisoformat(str(value)))
    except ValueError:
        return str(value)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
