"""Migrations by Alembic: two at once on an empty database both end well, and nothing is touched that it didn't make."""

from pathlib import Path

import alembic.command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from notif.adapters.postgres.database import KEEPALIVE, driver_url, translated
from notif.errors import ConfigurationError, NotifError

SCRIPTS = Path(__file__).parent.parent / "migrations"
VERSION_TABLE = {"version_table": "notif_version", "version_table_schema": "core"}
LOCK = 0x6E6F746966  # "notif": one upgrade at a time in a database


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config


def head() -> str:
    """The revision this release works with."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def upgrade(owner_url: str) -> tuple[str | None, str]:
    """Bring `core` to this release's revision; answers the revisions before and after. Raises NotifError."""
    engine = create_engine(driver_url(owner_url), poolclass=NullPool, connect_args=dict(KEEPALIVE))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
            _check_roles(connection)
            connection.execute(text("CREATE SCHEMA IF NOT EXISTS core"))
            before = revision_of(connection)
            config = _config()
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")
            return before, head()
    except DBAPIError as error:
        raise translated(error) or NotifError(f"migration failed: {str(error.orig).splitlines()[0]}") from error


def revision_of(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts=VERSION_TABLE).get_current_revision()


def _check_roles(connection: Connection) -> None:
    names = ["notif_owner", "notif_publisher", "notif_worker", "notif_maintenance"]
    found = connection.execute(text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:names)"), {"names": names})
    missing = sorted(set(names) - {row[0] for row in found})
    if missing:
        raise ConfigurationError(
            f"database: the role {missing[0]} is missing; run `notif db roles`, or its SQL by `--print`"
        )
    if connection.execute(text("SELECT current_user")).scalar() != "notif_owner":
        raise ConfigurationError("NOTIF_DATABASE_OWNER_URL: migrations run as notif_owner, which owns what they make")
