"""`notif tenants`."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID, uuid4

import typer

from notif.cli.environment import opened
from notif.cli.output import Json, show, show_json, show_table
from notif.cli.usage import TENANTS, group, id_argument, id_option
from notif.ports import Tenant

TenantId = Annotated[UUID, id_argument("ID", "The tenant's id.", TENANTS)]


def add_to(app: typer.Typer) -> None:
    commands = group("Who the product's customers are.")
    commands.command()(add)
    commands.command("list")(list_)
    commands.command("set")(set_)
    commands.command()(deactivate)
    app.add_typer(commands, name="tenants")


def add(
    name: Annotated[str, typer.Option(help="What people call it.", show_default=False)],
    tenant_id: Annotated[UUID | None, id_option("--id", help_="A new one if left out.")] = None,
    timezone: Annotated[str, typer.Option(help="Like Europe/Berlin.")] = "UTC",
    tier: Annotated[str, typer.Option(help="A word of the product's.")] = "standard",
    cell: Annotated[UUID | None, id_option(help_="NOTIF_CELL_ID if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Add a tenant, and print its id."""
    with opened() as app:
        tenant = Tenant(tenant_id or uuid4(), name, timezone, tier, cell or app.settings.cell_id, active=True)
        app.tenants.add(tenant)
    if as_json:
        show_json(asdict(tenant))
    else:
        show(str(tenant.id))


def list_(as_json: Json = False) -> None:
    """List all tenants, the inactive too."""
    with opened() as app:
        found = app.tenants.list()
    if as_json:
        show_json([asdict(tenant) for tenant in found])
        return
    rows = [(t.id, t.name, t.timezone, t.tier, t.cell_id, "yes" if t.active else "no") for t in found]
    show_table(("ID", "NAME", "TIMEZONE", "TIER", "CELL", "ACTIVE"), rows)


def set_(
    tenant: TenantId,
    name: Annotated[str | None, typer.Option(help="What people call it.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Like Europe/Berlin.")] = None,
    tier: Annotated[str | None, typer.Option(help="A word of the product's.")] = None,
    cell: Annotated[UUID | None, id_option(help_="Of its coming jobs.")] = None,
    active: Annotated[bool | None, typer.Option("--active/--inactive", help="Whether it may publish.")] = None,
) -> None:
    """Change a tenant: what is named, and nothing else."""
    given = {"name": name, "timezone": timezone, "tier": tier, "cell_id": cell, "active": active}
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("name what to change, see --help", param_hint="tenants set")
    with opened() as app:
        app.tenants.set(tenant, **changes)


def deactivate(tenant: TenantId) -> None:
    """Let a tenant publish no more. What it has published goes on."""
    with opened() as app:
        app.tenants.deactivate(tenant)
