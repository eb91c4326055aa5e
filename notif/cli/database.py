"""`notif db`."""

from typing import Annotated

import typer

from notif.bootstrap.schema import create_roles, roles_sql, upgrade
from notif.cli.environment import environment
from notif.cli.output import say, show
from notif.cli.usage import group
from notif.settings import Settings


def add_to(app: typer.Typer) -> None:
    commands = group("The database's schema and roles.")
    commands.command("upgrade")(upgrade_)
    commands.command()(roles)
    app.add_typer(commands, name="db")


def upgrade_() -> None:
    """Migrate to this release's schema, as NOTIF_DATABASE_OWNER_URL. Any number at once all end well."""
    before, after = upgrade(Settings.from_environment(environment()))
    show(f"schema core: {after}, nothing to do" if before == after else f"schema core: {before or 'empty'} → {after}")


def roles(
    only_print: Annotated[bool, typer.Option("--print", help="Show the SQL instead of running it.")] = False,
    database: Annotated[str, typer.Option(help="With --print: the database's name.")] = "notif",
    admin_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A superuser's, or that of a role with CREATEROLE which owns the database. PGUSER, PGPASSWORD and the "
            "like hold: postgresql:///notif is enough then.",
        ),
    ] = None,
) -> None:
    """Make the four roles, each with the password that NOTIF_DATABASE_URL and its sisters hold for it. Safe to run again."""
    if only_print:
        show(roles_sql(database))
        return
    if admin_url is None:
        raise typer.BadParameter("is missing; or see the SQL with --print", param_hint="--admin-url")
    bare = create_roles(Settings.from_environment(environment()), admin_url)
    show("roles are there")
    for role in bare:
        say(f"{role}: no URL in the environment holds a password for it, so none was set")
