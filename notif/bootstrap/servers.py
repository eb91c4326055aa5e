"""The servers of one machine: those the environment names, else embedded ones, made ready for use."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from notif.adapters import alembic
from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.adapters.postgres import roles
from notif.bootstrap.app import required
from notif.bootstrap.running import write_secret
from notif.errors import NotifError
from notif.settings import Settings

DATABASE = "notif"


@dataclass(frozen=True, slots=True)
class Addresses:
    """URLs: one per database role, and Redis. `owner` None: no migrations; `publisher` None: product code has its own."""

    worker: str
    maintenance: str
    redis: str
    owner: str | None = None
    publisher: str | None = None


class Servers:
    """Kept in `folder`, or thrown away if it is None. Raises ConfigurationError if the URLs given are half of what is needed."""

    def __init__(self, settings: Settings, folder: Path | None) -> None:
        self._settings, self._folder = settings, folder
        self.postgres: EmbeddedPostgres | None = None
        self.valkey: EmbeddedValkey | None = None
        if settings.database_url or settings.database_maintenance_url or settings.database_owner_url:
            required("NOTIF_DATABASE_URL", settings.database_url, "a worker")
            required("NOTIF_DATABASE_MAINTENANCE_URL", settings.database_maintenance_url, "the relay")
        else:
            self.postgres = EmbeddedPostgres(folder and folder / "postgres", binaries=settings.pg_bin)
        if settings.redis_url is None:
            self.valkey = EmbeddedValkey(folder and folder / "valkey", binary=settings.valkey_bin)

    def start(self) -> Addresses:
        """Servers that answer, with roles and the newest schema. Raises NotifError."""
        if self.valkey:
            self.valkey.start()
        addresses = self._embedded(self.postgres.start()) if self.postgres else self._given()
        if addresses.owner:
            alembic.upgrade(addresses.owner)
        return addresses

    def look(self, on_event: Callable[[str, str], None]) -> None:
        """Put back an embedded server that has died; call it every now and then. `on_event(server, text)`."""
        for server in (self.valkey, self.postgres):
            if server and not server.running:
                on_event(server.product, "has died, and is started again")
                try:
                    server.start()
                except NotifError as error:  # it may pass, and the next look tries again
                    on_event(server.product, str(error))

    def stop(self) -> None:
        for server in (self.valkey, self.postgres):
            if server:
                server.stop()

    def _given(self) -> Addresses:
        settings = self._settings
        return Addresses(
            worker=required("NOTIF_DATABASE_URL", settings.database_url, "a worker"),
            maintenance=required("NOTIF_DATABASE_MAINTENANCE_URL", settings.database_maintenance_url, "the relay"),
            redis=self._redis(),
            owner=settings.database_owner_url.get_secret_value() if settings.database_owner_url else None,
        )

    def _embedded(self, postgres: EmbeddedPostgres) -> Addresses:
        passwords = self._passwords()
        postgres.create_database(DATABASE)
        roles.create(postgres.url_for("postgres", postgres.password, DATABASE), passwords, own_database=True)

        def url(role: str) -> str:
            return postgres.url_for(role, passwords[role], DATABASE)

        return Addresses(
            worker=url("notif_worker"),
            maintenance=url("notif_maintenance"),
            redis=self._redis(),
            owner=url("notif_owner"),
            publisher=url("notif_publisher"),
        )

    def _redis(self) -> str:
        return self.valkey.url if self.valkey else required("NOTIF_REDIS_URL", self._settings.redis_url, "the relay")

    def _passwords(self) -> dict[str, str]:
        """One per role, kept with the data: a shell that knows a URL can use it after a restart."""
        made = {role: secrets.token_urlsafe(24) for role in roles.ROLES}
        if self._folder is None:
            return made
        path = self._folder / "passwords.json"
        if path.exists():
            return {**made, **json.loads(path.read_text())}
        write_secret(path, json.dumps(made))
        return made
