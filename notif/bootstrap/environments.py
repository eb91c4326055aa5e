"""What each process of a machine may know: its own role's URLs, and nothing that leads elsewhere by accident."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from notif.bootstrap.servers import Addresses
from notif.settings import Settings, secret_variables, variables

BASE = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")
"""What every process gets from ours."""
SERVICES = ("NOTIF_", "RESEND_", "UPSTASH_", "BETTERSTACK_", "DRAMATIQ_")
"""Variables that begin so are settings: they come from Settings, or not at all."""
SANDBOX_KEY = SecretStr("re_sandbox")


class Environments:
    """`extra` is what the caller wants passed on; of it, settings and (with an embedded server) libpq's are left out."""

    def __init__(
        self, settings: Settings, addresses: Addresses, sandbox_url: str | None, extra: Mapping[str, str]
    ) -> None:
        sandboxed: dict[str, Any] = {}
        if sandbox_url is not None:
            sandboxed = {"resend_api_key": SANDBOX_KEY, "resend_api_url": sandbox_url}
            if settings.betterstack_token is None:
                sandboxed |= {"betterstack_token": SANDBOX_KEY, "betterstack_url": sandbox_url}
        self._settings = settings.model_copy(update={**sandboxed, "redis_url": SecretStr(addresses.redis)})
        self._addresses = addresses
        self._secrets = set() if sandbox_url is not None else {"resend_api_key"}
        self._extra = {name: value for name, value in extra.items() if not _is_setting(name, addresses)}

    @property
    def product(self) -> dict[str, str]:
        """May publish, cancel and ask."""
        return self._made(database_url=self._addresses.publisher)

    @property
    def operator(self) -> dict[str, str]:
        """The same and all the rest: the command line's, and what a second shell is given."""
        a = self._addresses
        return self._made(database_url=a.publisher, database_maintenance_url=a.maintenance, database_owner_url=a.owner)

    @property
    def worker(self) -> dict[str, str]:
        return self._made(database_url=self._addresses.worker)

    @property
    def relay(self) -> dict[str, str]:
        """Relay and maintenance."""
        return self._made(database_maintenance_url=self._addresses.maintenance)

    @property
    def sandbox(self) -> dict[str, str]:
        return self._base()

    def note(self, env: Mapping[str, str]) -> dict[str, str]:
        """What of it a second shell needs: settings, but no secret that was given to us."""
        given = {
            str(info.alias)
            for name, info in Settings.model_fields.items()
            if name in ("resend_api_key", "betterstack_token") and getattr(self._settings, name) is not SANDBOX_KEY
        }
        return {name: env[name] for name in variables() if name in env and name not in given}

    def _made(self, **urls: str | None) -> dict[str, str]:
        names = ("database_url", "database_maintenance_url", "database_owner_url")
        update = {name: SecretStr(url) if (url := urls.get(name)) else None for name in names}
        return {**self._base(), **as_environment(self._settings.model_copy(update=update))}

    def _base(self) -> dict[str, str]:
        base = {name: os.environ[name] for name in BASE if name in os.environ} | self._extra
        source = str(Path(__file__).resolve().parents[2])
        return {**base, "PYTHONPATH": os.pathsep.join(filter(None, (source, base.get("PYTHONPATH"))))}


def as_environment(settings: Settings) -> dict[str, str]:
    """The variables that read as these settings again. Paths become absolute: a child may stand elsewhere."""
    found = {}
    for name, info in Settings.model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        if value is not None:
            found[str(info.alias)] = str(value.absolute() if isinstance(value, Path) else value)
    return found


def _is_setting(name: str, addresses: Addresses) -> bool:
    # An embedded server is reached by its URL alone: PGHOSTADDR, PGSSLMODE and the like are meant for another.
    prefixes = (*SERVICES, "PG") if addresses.publisher else SERVICES
    return name.upper().startswith(prefixes) or name in secret_variables()
