"""The product's customers: kept as the product says, and checked before they are."""

import zoneinfo
from dataclasses import replace
from typing import Any
from uuid import UUID

from notif.errors import Rejected, nearest
from notif.ports import Tenant, TenantsPort


class Tenants:
    """Everything raises Rejected for a field that can't be, naming it."""

    def __init__(self, store: TenantsPort) -> None:
        self._store = store

    def add(self, tenant: Tenant) -> None:
        """Raises Refused if the id is taken."""
        self._store.add(checked(tenant))

    def list(self) -> list[Tenant]:
        """All of them, the inactive too, by name."""
        return self._store.list()

    def get(self, tenant_id: UUID) -> Tenant:
        """Raises NotFound."""
        return self._store.get(tenant_id)

    def update(self, tenant: Tenant) -> None:
        """Raises NotFound."""
        self._store.update(checked(tenant))

    def set(self, tenant_id: UUID, **changes: Any) -> Tenant:
        """Change the fields that are named; the tenant as it is now. Raises NotFound."""
        changed = replace(self._store.get(tenant_id), **changes)
        self.update(changed)
        return changed

    def deactivate(self, tenant_id: UUID) -> Tenant:
        """It publishes no more; what it has published goes on. Raises NotFound."""
        return self.set(tenant_id, active=False)


def checked(tenant: Tenant) -> Tenant:
    """The tenant as it may be stored. Raises Rejected naming the field."""
    for field, value, most in (("name", tenant.name, 200), ("tier", tenant.tier, 40)):
        if not value.strip() or len(value) > most or not value.isprintable():
            raise Rejected(f"{field}: must be 1 to {most} characters on one line")
    _check_zone(tenant.timezone)
    return tenant


def _check_zone(name: str) -> None:
    known = zoneinfo.available_timezones() | {"UTC"}
    if name in known:
        return
    if len(known) == 1:
        raise Rejected(f"timezone: {name!r} can't be looked up, this machine knows UTC only; install tzdata")
    raise Rejected(f"timezone: {name!r} is not known; {_nearest_zone(name, known)}")


def _nearest_zone(name: str, known: set[str]) -> str:
    # People write the city: "Berlin", "new york". All 600 names would be no help.
    city = name.strip().replace(" ", "_").lower()
    ends = sorted(zone for zone in known if zone.lower().endswith(f"/{city}") or zone.lower() == city)
    if ends:
        return f"did you mean {ends[0]!r}?"
    found = nearest(name, known)
    return found if found.startswith("did") else "write it like Europe/Berlin, America/New_York or UTC"
