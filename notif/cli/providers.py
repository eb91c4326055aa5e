"""`notif resume`."""

from typing import Annotated

import typer

from notif.cli.environment import opened
from notif.cli.letters import Who, me
from notif.cli.output import show
from notif.errors import NotFound, Rejected, nearest


def add_to(app: typer.Typer) -> None:
    app.command()(resume)


def resume(
    provider: Annotated[str, typer.Argument(help="Like resend.", show_default=False)],
    domain: Annotated[str, typer.Option(metavar="D", help="One halted sender domain only.", show_default=False)] = "",
    who: Who = None,
) -> None:
    """End a provider's halt or closing (or one sender domain's); what waited for it is due at once."""
    with opened() as app:
        if provider not in app.provider_queues:
            raise Rejected(f"provider: {provider!r} is not configured; {nearest(provider, app.provider_queues)}")
        subject = f"{provider}, domain {domain}" if domain else provider
        if not app.upkeep.resume(provider, domain.lower(), app.provider_queues[provider], who or me()):
            closed = [f"{c.provider}{f' --domain {c.domain}' if c.domain else ''}" for c in app.closings.read()]
            others = f"; what is: {', '.join(closed)}" if closed else ""
            raise NotFound(f"{subject} is neither halted nor closed{others}")
        show(f"{subject}: goes on")
