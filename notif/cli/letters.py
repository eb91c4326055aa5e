"""`notif dead-letters`."""

import getpass
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from notif.bootstrap.app import App
from notif.cli.environment import opened
from notif.cli.output import Json, readable, safe, show, show_history, show_json, show_table
from notif.cli.usage import group
from notif.errors import ConfigurationError, nearest
from notif.ports import Letter

KEYS = (
    *("id", "job_id", "queue", "consumer", "cause", "outcome", "attempts", "last_error", "status"),
    *("correlation_id", "tenant_id"),
)
LetterId = Annotated[int, typer.Argument(metavar="ID", help="The dead letter's number.", show_default=False)]
Who = Annotated[str | None, typer.Option(metavar="NAME", help="Who decides; you, if left out.")]


def add_to(app: typer.Typer) -> None:
    commands = group("Jobs given up on, for a person to decide.")
    commands.command("list")(list_)
    for command in (show_, replay, discard):
        commands.command(command.__name__.rstrip("_"))(command)
    app.add_typer(commands, name="dead-letters")


def list_(
    status: Annotated[
        Literal["pending_review", "replayed", "discarded"], typer.Option(help="Which ones.")
    ] = "pending_review",
    most: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    as_json: Json = False,
) -> None:
    """List dead letters, the oldest first."""
    with opened() as app:
        found = app.letters.list(status=status, most=most)
    if as_json:
        show_json([_keys(letter) for letter in found])
        return
    columns = ("ID", "SINCE", "QUEUE", "CAUSE", "OUTCOME", "ATTEMPTS", "JOB", "LAST ERROR")
    rows = [(x.id, x.created_at, x.queue, x.cause, x.outcome, x.attempts, x.job_id, x.last_error) for x in found]
    show_table(columns, rows)


def show_(letter: LetterId, as_json: Json = False) -> None:
    """Show one dead letter whole, with its payload (personal data) and its history."""
    with opened() as app:
        found = app.letters.get(letter)
    if as_json:
        more = ("created_at", "decided_at", "decided_by", "reason", "payload", "history")
        show_json({**_keys(found), **{name: getattr(found, name) for name in more}, "raw": _raw(found)})
        return
    for name, value in asdict(found).items():
        if value is not None and name not in ("payload", "raw", "history"):
            show(f"{name:<15} {safe(readable(value))}")
    if found.payload is not None:
        show(f"payload         {json.dumps(found.payload)}")
    if found.raw is not None:
        show(f"raw             {_raw(found)}")
    show_history(found.history)


def replay(
    letter: LetterId,
    accept: Annotated[
        bool, typer.Option("--accept-possible-duplicate", help="Even if nothing protects against sending it twice.")
    ] = False,
    who: Who = None,
) -> None:
    """Put a job back, with the same request; after a call of unknown outcome under the same key. Prints the job's id."""
    with opened() as app:
        lifetime = _key_lifetime(app, app.letters.get(letter).queue)
        show(str(app.letters.replay(letter, lifetime, accept=accept, who=who or me())))


def discard(
    letter: LetterId,
    reason: Annotated[str, typer.Option(help="Why, for those who ask later.", show_default=False)],
    who: Who = None,
) -> None:
    """Close a dead letter for good: its job will not be done."""
    if not reason.strip():
        raise typer.BadParameter("is empty; somebody will ask", param_hint="--reason")
    with opened() as app:
        app.letters.discard(letter, reason=reason, who=who or me())


def me() -> str:
    """The user this runs as, for the records."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        return "unknown"


def _key_lifetime(app: App, queue: str) -> Any:
    if queue not in app.config.queue_names:
        raise ConfigurationError(
            f"queue {queue!r} is not configured any more, so nobody would read it; "
            f"{nearest(queue, app.config.queue_names)}"
        )
    return app.terms(queue).key_lifetime


def _keys(letter: Letter) -> dict[str, Any]:
    return {name: getattr(letter, name) for name in KEYS}


def _raw(letter: Letter) -> str | None:
    """Text if it is some, else hexadecimal digits."""
    if letter.raw is None:
        return None
    try:
        return safe(letter.raw.decode())
    except UnicodeDecodeError:
        return letter.raw.hex()
