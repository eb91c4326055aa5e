"""What Postgres says of itself before a process starts: whose it is, and how many connections it allows."""

from dataclasses import dataclass
from uuid import UUID

from notif.adapters.postgres.database import Database
from notif.errors import ConfigurationError

LIMITS = """
SELECT current_user::text,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
         - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::integer,
       r.rolconnlimit, d.datconnlimit
FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Allowed:
    """How many connections this role may have here at most, and by which setting."""

    role: str
    connections: int
    setting: str


class PostgresInstallation:
    """Under any role that a process runs as. Raises Unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def id(self) -> UUID:
        """Raises ConfigurationError if the schema isn't there."""
        if self._database.call("SELECT to_regclass('core.installation') IS NULL")[0][0]:
            raise ConfigurationError(
                "database: the schema core is missing, or older than this release; run `notif db upgrade`"
            )
        found: UUID = self._database.call("SELECT id FROM core.installation")[0][0]
        return found

    def allowed(self) -> Allowed:
        role, server, of_role, of_database = self._database.call(LIMITS)[0]
        limits = [(server, "max_connections less those reserved")]
        limits += [(of_role, "the role's CONNECTION LIMIT")] if of_role >= 0 else []
        limits += [(of_database, "the database's CONNECTION LIMIT")] if of_database >= 0 else []
        return Allowed(role, *min(limits))
