"""`notif send`, `cancel` and `explain`."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from pydantic_core import PydanticCustomError

from notif.cli.environment import opened
from notif.cli.output import Json, readable, safe, show, show_history, show_json, show_line
from notif.cli.usage import TENANTS, id_argument, id_option
from notif.config.units import duration
from notif.errors import NotFound, Refused
from notif.notifier import Notifier
from notif.ports import JobStatus

JobId = Annotated[UUID, id_argument("JOB", "The job's id.")]
LIVING = ("scheduled", "ready", "parked", "retrying", "halted", "pushed", "claimed")


def add_to(app: typer.Typer) -> None:
    for command in (send, cancel, explain):
        app.command()(command)


def send(  # noqa: PLR0913, PLR0917 - the options of a command
    tenant: Annotated[UUID, id_option(help_="Whose job it is.", hint=TENANTS)],
    kind: Annotated[str, typer.Option(help="What it is, like order.shipped.", show_default=False)],
    data: Annotated[
        str, typer.Option(metavar="JSON|@FILE|@-", help="Its data: JSON, a file of it, or standard input.")
    ],
    channel: Annotated[str | None, typer.Option(help="One of the kind's channels instead of all.")] = None,
    job_id: Annotated[UUID | None, id_option(help_="A UUID of version 7; a new one if left out.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Not before, like 2027-01-31T09:00:00+01:00.")] = None,
    wait: Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Not before, like 5m or 1h.")] = None,
    as_json: Json = False,
) -> None:
    """Publish one job, and print its id."""
    run_at, content = _run_at(at, wait), _data(data)
    with opened() as app:
        notifier = Notifier(app.queue, app.queue, app.kinds)
        envelope = notifier.send(
            tenant_id=tenant, kind=kind, data=content, channel=channel, run_at=run_at, job_id=job_id
        )
    if as_json:
        show_json(envelope.model_dump(mode="json"))
    else:
        show(str(envelope.job_id))


def cancel(job: JobId, as_json: Json = False) -> None:
    """Take a job back where it isn't too late. Exit 1 if it is too late on one of its queues."""
    with opened() as app:
        taken = app.queue.cancel(job)
    if not taken:
        raise NotFound(f"no job {job} is known here")
    if as_json:
        show_json(taken)
    for queue, done in () if as_json else taken.items():
        show(f"{queue}: {'cancelled' if done else 'too late'}")
    if not all(taken.values()):
        raise Refused("too late: see `notif explain`")


def explain(job: JobId, as_json: Json = False) -> None:
    """Tell where a job is, what it waits for, until when, and its history. `--json`: one object a line for each queue."""
    with opened() as app:
        found = app.queue.status(job)
    if not found:
        raise NotFound(f"no job {job} is known here; what ended is forgotten with its fence")
    if as_json:
        for status in current(found):
            show_line(asdict(status))
        return
    for number, status in enumerate(found):
        if number:
            show("")
        _explain(status)


def current(found: Iterable[JobStatus]) -> list[JobStatus]:
    """One per queue: the living row, else how it ended; a repeated publish that was a Duplicate says least."""
    best: dict[str, JobStatus] = {}
    for status in found:
        known = best.get(status.queue)
        if known is None or (known.state == "duplicate" and status.state != "duplicate"):
            best[status.queue] = status
    return list(best.values())


def _explain(status: JobStatus) -> None:
    reader = "" if status.consumer == status.queue else f", read by {status.consumer}"
    show(f"{status.queue}{reader}: {status.state}, {_attempts(status.attempts)}")
    if status.state in LIVING:
        until = f" until {readable(status.until)} ({_distance(status.until)})" if status.until else ""
        show(f"waits for {safe(status.waits_for or 'nothing')}{until}")
    elif status.waits_for:
        show(safe(status.waits_for))
    show_history(status.history)


def _attempts(count: int) -> str:
    return "no attempt yet" if count == 0 else f"{count} attempt{'s' if count > 1 else ''}"


def _distance(at: datetime) -> str:
    seconds = (at - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return "now"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"in {seconds / size:.0f}{unit}"
    return f"in {seconds:.0f}s"


def _data(text: str) -> dict[str, Any]:
    try:
        if text == "@-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text()
        content = json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"{text[1:]} can't be read: {error.strerror}", param_hint="--data") from None
    except ValueError as error:  # no JSON, or no text at all
        raise typer.BadParameter(f"is no JSON: {error}", param_hint="--data") from None
    if not isinstance(content, dict):
        raise typer.BadParameter('must be a JSON object, like {"to": "ann@example.test"}', param_hint="--data")
    return content


def _run_at(at: str | None, wait: str | None) -> datetime | None:
    if at is not None and wait is not None:
        raise typer.BadParameter("--at is given too; give one of them", param_hint="--in")
    if wait is not None:
        try:
            return datetime.now(UTC) + duration(wait)
        except PydanticCustomError as error:
            raise typer.BadParameter(str(error), param_hint="--in") from None
    if at is None:
        return None
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise typer.BadParameter(
            f"{at!r} is no time; write it like 2027-01-31T09:00:00+01:00", param_hint="--at"
        ) from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"has no time zone; write {at}Z for UTC, or {at}+01:00", param_hint="--at")
    return moment
