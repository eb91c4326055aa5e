"""`notif sandbox`."""

from pathlib import Path
from typing import Annotated

import typer

from notif.cli.output import say
from notif.errors import Unavailable
from notif.sandbox import serve


def add_to(app: typer.Typer) -> None:
    app.command()(sandbox)


def sandbox(
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8025,
    journal: Annotated[Path | None, typer.Option(help="Mails and keys outlive a restart in this file.")] = None,
) -> None:
    """Stand in for Resend and Better Stack over HTTP, until Ctrl-C. See docs/reference/sandbox.md."""
    try:
        serve(
            host,
            port,
            journal,
            ready=lambda url: say(f"sandbox at {url}; point RESEND_API_URL and BETTERSTACK_URL there"),
        )
    except OSError as error:
        raise Unavailable(f"sandbox: {host}:{port} can't be used: {error.strerror or error}") from error
