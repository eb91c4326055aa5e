"""The database before there is an App: its roles and its schema."""

from urllib.parse import unquote, urlsplit

from notif.adapters import alembic
from notif.adapters.postgres import roles
from notif.bootstrap.app import required
from notif.settings import Settings


def upgrade(settings: Settings) -> tuple[str | None, str]:
    """Migrate to this release's revision; the revisions before and after. Two at once both end well. Raises NotifError."""
    return alembic.upgrade(required("NOTIF_DATABASE_OWNER_URL", settings.database_owner_url, "a migration"))


def roles_sql(database: str) -> str:
    """What makes the four roles, for those who run it by hand. Passwords are left to them."""
    return "\n".join(roles.statements(database))


def create_roles(settings: Settings, admin_url: str) -> list[str]:
    """Make the four roles, with the passwords that the environment's URLs hold; answers the roles without one.

    Raises NotifError if the administrator may not.
    """
    urls = (settings.database_url, settings.database_maintenance_url, settings.database_owner_url)
    parts = [urlsplit(url.get_secret_value()) for url in urls if url is not None]
    found = {unquote(part.username): unquote(part.password) for part in parts if part.username and part.password}
    passwords = {role: found[role] for role in roles.ROLES if role in found}
    roles.create(admin_url, passwords)
    return [role for role in roles.ROLES if role not in passwords]
