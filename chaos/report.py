"""What a run shows: progress on stderr, a table, the story of a failure, or JSON."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from chaos.trial import Happened, Result

WIDE = 200
"""Columns where nobody looks: a pipe gets every line whole."""
EVERY = 5.0
"""Seconds between two lines of progress where no terminal is."""
MOST_WRONG = 20
"""Lines of what is wrong."""


def figures(result: Result) -> dict[str, Any]:
    """One line of the table."""
    books = result.books
    dead = sum(count for end, count in books.ends.items() if end.startswith(("dead", "discarded")))
    return {
        "seed": result.seed,
        "faults": sum(result.faults.values()),
        "jobs": books.jobs,
        "rows": books.rows,
        "delivered": books.ends.get("delivered", 0),
        "dead": dead,
        "replayed": books.replays,
        "cancelled": books.ends.get("cancelled", 0),
        **{what: books.count(what) for what in ("lost", "doubled", "stuck", "wrong", "late")},
        "recovery s": round(result.recovery.seconds, 1),
        "waited s": round(result.waited.seconds, 1),
        "emptied s": round(result.emptied, 1),
    }


def told(result: Result) -> str:
    """One line as soon as a seed is done: the table comes after the last, and not at all if that can't go on."""
    return ", ".join(f"{name} {value}" for name, value in figures(result).items())


def print_table(results: Sequence[Result]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [figures(result) for result in results]
    for name in rows[0]:
        table.add_column(name, justify="right")
    table.add_column("faults by kind", overflow="fold")
    for result, row in zip(results, rows, strict=True):
        kinds = ", ".join(
            f"{name} {count}" if count > 1 else name for name, count in sorted(result.faults.items())
        )  # fmt: skip
        table.add_row(*(str(value) for value in row.values()), kinds)
    console.print(table)


def print_failure(result: Result) -> None:
    """Seed, what is wrong, the faults and the first wrong jobs' histories."""
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(result.books.causes.items())) or "none"
    lines = [again(result.seed, result.minutes)]
    lines += [f"  {wrong.text}" for wrong in result.books.wrong[:MOST_WRONG]]
    if len(result.books.wrong) > MOST_WRONG:
        lines.append(f"  and {len(result.books.wrong) - MOST_WRONG} more")
    lines += [f"  dead letters by cause: {causes}", *story(result.timeline)]
    for job, moves in result.histories.items():
        lines += [f"job {job}:", *(f"  {move}" for move in moves)]
    sys.stderr.write("\n".join(lines) + "\n")


def again(seed: int, minutes: float) -> str:
    """How to see it once more."""
    return f"seed {seed} failed; the same faults again: ./run chaos --seed {seed} --minutes {minutes:g}"


def story(timeline: Sequence[Happened]) -> list[str]:
    """What happened when, as lines."""
    return ["timeline, in seconds:", *(f"  {happened.at:7.1f}  {happened.text}" for happened in timeline)]


def print_json(results: Sequence[Result]) -> None:
    found = [{**asdict(result), "figures": figures(result), "passed": result.passed} for result in results]
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


@contextmanager
def progress(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str, str], None]]:
    """Says (who, what) on stderr: one line that changes, or a line every five seconds where no terminal is."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("") as status:
            yield lambda who, what: status.update(f"{who}: {what}")
        return
    said = [float("-inf")]

    def say(who: str, what: str) -> None:
        if clock() - said[0] >= EVERY:
            said[0] = clock()
            sys.stderr.write(f"{who}: {what}\n")
            sys.stderr.flush()

    yield say
