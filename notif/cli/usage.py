"""What commands share of how they are called: groups, and ids."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import typer

WRONG = 2
"""The exit code of wrong usage or configuration."""

EXAMPLE = "0192d3c4-0000-7000-8000-000000000001"
TENANTS = "as `notif tenants list` shows them"


def group(help_: str) -> typer.Typer:
    """Commands under one name, which alone shows what there is."""
    made = typer.Typer(help=help_)
    made.callback(invoke_without_command=True)(shown_alone)
    return made


def shown_alone(context: typer.Context) -> None:
    """Help, where no command is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG)


def id_argument(metavar: str, help_: str, hint: str = "") -> Any:
    """A UUID that must be given; `hint` says where one finds the right ones."""
    return typer.Argument(metavar=metavar, help=help_, show_default=False, parser=_uuid(hint))


def id_option(*names: str, help_: str, hint: str = "") -> Any:
    """A UUID, as an option."""
    return typer.Option(*names, metavar="ID", help=help_, show_default=False, parser=_uuid(hint))


def _uuid(hint: str) -> Callable[[str], UUID]:
    def uuid(text: str) -> UUID:
        try:
            return UUID(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is no UUID, {hint or f'like {EXAMPLE}'}") from None

    return uuid
