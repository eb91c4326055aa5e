"""The four database roles, as SQL that a person can read before it runs."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from notif.errors import NotifError

ROLES = {
    "notif_owner": "migrations; owns the schema core and its functions",
    "notif_publisher": "product code: may publish, cancel and ask for a status, and reads no table",
    "notif_worker": "workers: the protocol's functions, and one tenant's rows in handlers",
    "notif_maintenance": "relay, maintenance, web, command line",
}

TRIES = 20


def statements(database: str) -> list[str]:
    """SQL that makes what is missing; safe to run again. For a superuser, or a role with CREATEROLE that owns the database."""
    made = [
        f"-- {purpose}\n"
        f"DO $$ BEGIN CREATE ROLE {role} LOGIN NOBYPASSRLS; "
        "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;"
        for role, purpose in ROLES.items()
    ]
    name = sql.Identifier(database).as_string(None)
    made.append(f"GRANT CONNECT ON DATABASE {name} TO {', '.join(ROLES)};")
    made.append(f"GRANT CREATE ON DATABASE {name} TO notif_owner;")
    made.append(
        "-- for the alarm about old snapshots; without it there is none\n"
        "DO $$ BEGIN GRANT pg_read_all_stats TO notif_maintenance; "
        "EXCEPTION WHEN insufficient_privilege THEN RAISE NOTICE 'pg_read_all_stats: not ours to grant'; END $$;"
    )
    return made


def create(admin_url: str, passwords: Mapping[str, str], *, own_database: bool = False) -> None:
    """Run `statements` and set the passwords given (role → password).

    `own_database`: the database becomes notif_owner's, so that on one machine a product's tables can be made with its URL.
    """
    try:
        with psycopg.connect(admin_url, autocommit=True) as connection:
            for statement in statements(connection.info.dbname):
                _run(connection, statement.encode())
            for role, password in passwords.items():
                change = sql.SQL("ALTER ROLE {} PASSWORD {}")
                _run(connection, change.format(sql.Identifier(role), sql.Literal(password)))
            if own_database:
                name = sql.Identifier(connection.info.dbname)
                _run(connection, sql.SQL("ALTER DATABASE {} OWNER TO notif_owner").format(name))
    except psycopg.Error as error:
        raise NotifError(
            f"database roles: {str(error).strip().splitlines()[0]}; `notif db roles --print` shows the SQL to run by hand"
        ) from error


def _run(connection: psycopg.Connection[Any], statement: bytes | sql.Composed) -> None:
    """Until nobody changes the same role or database at the same moment: there is no lock that holds for a whole server."""
    for _ in range(TRIES):
        with suppress(psycopg.errors.InternalError_):  # XX000: tuple concurrently updated
            connection.execute(statement)
            return
    connection.execute(statement)
