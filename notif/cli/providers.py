"""`notif resume`."""

from typing import Annotated

import typer

from notif.cli.environment import opened
from notif.cli.letters import Who, me
from notif.cli.output import show
from notif.errors import NotFound, Rejected, nearest
from notif.ports import Closing


def add_to(app: typer.Typer) -> None:
    app.command()(resume)


def resume(
    provider: Annotated[str, typer.Argument(help="Like resend.", show_default=False)],
    domain: Annotated[str, typer.Option(metavar="D", help="One halted sender domain only.", show_default=False)] = "",
    who: Who = None,
) -> None:
    """End a provider's halt, closing or circuit (or one sender domain's); what waited for it is due at once."""
    with opened() as app:
        if provider not in app.provider_queues:
            raise Rejected(f"provider: {provider!r} is not configured; {nearest(provider, app.provider_queues)}")
        subject = f"{provider}, domain {domain}" if domain else provider
        if not app.upkeep.resume(provider, domain.lower(), app.provider_queues[provider], who or me()):
            closed = [f"{c.provider}{f' --domain {c.domain}' if c.domain else ''}" for c in app.closings.read()]
            others = f"; what is: {', '.join(closed)}" if closed else ""
            raise NotFound(f"{subject} is neither halted nor closed{others}")
        show(f"{subject}: goes on")


def described(closing: Closing) -> str:
    """A line for a person: what takes no request, until when, and why."""
    subject = f"{closing.provider}, domain {closing.domain}" if closing.domain else closing.provider
    probe = f"next probe {_in(closing.probe_seconds)}"
    if closing.state == "circuit":
        until = f"circuit open, {probe}"
    elif closing.state == "halted":
        until = f"halted until `notif resume` or a probe that succeeds, {probe}"
    else:
        until = f"closed, opens {_in(closing.seconds)}, for transactional {_in(closing.transactional_seconds)}"
    return f"{subject}: {until}: {closing.reason}"


def _in(seconds: float | None) -> str:
    return "now" if seconds is None or seconds <= 0 else f"in {seconds:.0f} s"
