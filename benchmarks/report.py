"""What a benchmark answers, how it is printed, and what is shown meanwhile."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

Row = Mapping[str, object]
Step = Callable[[str], None]
"""Says what is done next; the step before it is over."""
WIDE = 200
"""Columns where nobody looks: a pipe gets every line whole."""


@dataclass(frozen=True)
class Table:
    """`rows` all have the keys of the first, which are its columns; None is a dash."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Size:
    """How much of everything. The figures of a note are made with the defaults."""

    jobs: int = 1500
    rounds: int = 3
    samples: int = 200
    idle_seconds: float = 20.0
    counted: int = 1000
    published: int = 10_000
    backlog: int = 200_000
    picks: int = 150
    only: Sequence[str] = ()
    """Outages by their names; none: the standard ones."""
    minutes: float = 10.0
    """Of steady load."""
    held_minutes: float = 5.5
    """An old snapshot is an alarm after five."""


QUICK = Size(
    jobs=200, rounds=1, samples=20, idle_seconds=3.0, counted=100, published=1000, backlog=10_000, picks=20,
    minutes=0.5, held_minutes=0.2,
)  # fmt: skip
"""Shows that everything runs; its figures mean nothing."""


def print_tables(facts: Row, found: Mapping[str, Sequence[Table]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    console.print("  ·  ".join(f"{name} {_cell(value)}" for name, value in facts.items()), style="dim")
    for tables in found.values():
        for table in tables:
            console.print(_rich(table))
            for note in table.notes:
                console.print(f"  {note}", style="dim")


def print_json(facts: Row, found: Mapping[str, Sequence[Table]]) -> None:
    results = {
        name: [{"title": table.title, "rows": table.rows, "notes": table.notes} for table in tables]
        for name, tables in found.items()
    }
    sys.stdout.write(json.dumps({"machine": facts, "results": results}, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def progress(name: str, steps: int) -> Iterator[Step]:
    """A bar of `steps` steps on stderr; plain lines where no terminal is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("[bold]{task.fields[name]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=steps, completed=-1, name=name)
        yield lambda text: bar.update(task, advance=1, description=text)


def machine_facts() -> dict[str, object]:
    """What the figures depend on and the code doesn't."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    load = os.getloadavg()[0]
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "load at start": round(load, 2)}


def _rich(table: Table) -> RichTable:
    made = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in table.rows[0].items():
        made.add_column(name, justify="left" if isinstance(value, str) else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*map(_cell, row.values()))
    return made


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case float() if value >= 100:
            return f"{value:,.0f}"
        case float():
            return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
        case int():
            return f"{value:,}"
    return str(value)
