"""Migrations: twice, two at once, beside other people's tables, and the sentences for what is missing."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from notif.adapters import alembic
from notif.adapters.postgres import roles
from notif.errors import ConfigurationError, NotifError, Unavailable
from tests.kit import ROOT
from tests.servers import PASSWORD, Servers

CATALOGUE = """
SELECT 'relation', n.nspname || '.' || relname || ' ' || relkind::text || ' ' || coalesce(relacl::text, '') FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace WHERE n.nspname !~ '^(pg_|information_schema)'
UNION ALL SELECT 'function', p.oid::regprocedure || ' ' || md5(prosrc) || coalesce(proacl::text, '') FROM pg_proc p
JOIN pg_namespace n ON n.oid = pronamespace WHERE n.nspname = 'core'
UNION ALL SELECT 'policy', polrelid::regclass || ' ' || polname FROM pg_policy
"""


@pytest.fixture
def empty(servers: Servers) -> Iterator[str]:
    """The name of a new database that only the roles know."""
    name = f"notif_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(servers.admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        roles.create(servers.admin(name), dict.fromkeys(roles.ROLES, PASSWORD))
        yield name
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def asked(servers: Servers, database: str, query: str) -> list[Any]:
    with psycopg.connect(servers.admin(database), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def test_upgraded_twice_is_upgraded_once(servers: Servers, empty: str) -> None:
    owner = servers.url("notif_owner", empty)
    assert alembic.upgrade(owner) == (None, alembic.head())
    once = sorted(asked(servers, empty, CATALOGUE))
    assert alembic.upgrade(owner) == (alembic.head(), alembic.head())
    assert sorted(asked(servers, empty, CATALOGUE)) == once
    assert asked(servers, empty, "SELECT version_num FROM core.notif_version") == [(alembic.head(),)]


def test_two_at_once_on_an_empty_database_both_end_well(servers: Servers, empty: str) -> None:
    program = "import sys; from notif.adapters import alembic; print(*alembic.upgrade(sys.argv[1]))"
    argv = [sys.executable, "-c", program, servers.url("notif_owner", empty)]
    both = [subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = sorted(process.communicate(timeout=60)[0].strip() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert answers == [f"{alembic.head()} {alembic.head()}", f"None {alembic.head()}"]


def test_it_touches_nothing_it_did_not_make(servers: Servers, empty: str) -> None:
    theirs = (
        "CREATE SCHEMA core_other; CREATE TABLE core_other.outbox (id int); CREATE TABLE public.tenant (id int);"
        "CREATE TABLE public.alembic_version (version_num text); INSERT INTO public.alembic_version VALUES ('theirs');"
        "INSERT INTO public.tenant VALUES (7); INSERT INTO core_other.outbox VALUES (8)"
    )
    asked(servers, empty, theirs)
    others = (
        "SELECT oid, relname, relowner, relacl::text, relfilenode FROM pg_class "
        "WHERE relnamespace IN ('public'::regnamespace, 'core_other'::regnamespace) ORDER BY oid"
    )
    before = asked(servers, empty, others)
    alembic.upgrade(servers.url("notif_owner", empty))
    assert asked(servers, empty, others) == before
    rows = "SELECT version_num, id FROM public.alembic_version, public.tenant UNION ALL SELECT '', id FROM core_other.outbox"
    assert asked(servers, empty, rows) == [("theirs", 7), ("", 8)]


def test_a_schema_core_that_was_there_is_used(servers: Servers, empty: str) -> None:
    asked(servers, empty, "CREATE SCHEMA core AUTHORIZATION notif_owner")
    asked(servers, empty, "CREATE TABLE core.theirs (id int); INSERT INTO core.theirs VALUES (1)")
    alembic.upgrade(servers.url("notif_owner", empty))
    assert asked(servers, empty, "SELECT id FROM core.theirs") == [(1,)]


def test_a_migration_that_fails_leaves_nothing(servers: Servers, empty: str) -> None:
    asked(servers, empty, "CREATE SCHEMA core AUTHORIZATION notif_owner; CREATE TABLE core.process (id int)")
    with pytest.raises(NotifError, match='migration failed: relation "process" already exists'):
        alembic.upgrade(servers.url("notif_owner", empty))
    found = asked(servers, empty, "SELECT relname::text FROM pg_class WHERE relnamespace = 'core'::regnamespace")
    assert found == [("process",)]


def test_only_the_owner_migrates(servers: Servers, empty: str) -> None:
    for url in (servers.url("notif_maintenance", empty), servers.admin(empty)):
        with pytest.raises(ConfigurationError, match="NOTIF_DATABASE_OWNER_URL: migrations run as notif_owner"):
            alembic.upgrade(url)


def test_a_database_that_does_not_answer_is_said_so(servers: Servers) -> None:
    with pytest.raises(Unavailable, match="Postgres does not answer"):
        alembic.upgrade("postgresql://notif_owner@127.0.0.1:1/notif")


def test_a_missing_role_is_named(servers: Servers, empty: str) -> None:
    """Roles are the server's, not the database's: this one is renamed for as long as it takes."""
    asked(servers, empty, "ALTER ROLE notif_publisher RENAME TO notif_publisher_away")
    try:
        with pytest.raises(ConfigurationError) as raised:
            alembic.upgrade(servers.url("notif_owner", empty))
    finally:
        asked(servers, empty, "ALTER ROLE notif_publisher_away RENAME TO notif_publisher")
        asked(servers, empty, f"ALTER ROLE notif_publisher PASSWORD '{PASSWORD}'")
    assert str(raised.value) == (
        "database: the role notif_publisher is missing; run `notif db roles`, or its SQL by `--print`"
    )
    assert asked(servers, empty, "SELECT 1 FROM pg_namespace WHERE nspname = 'core'") == []


def test_the_statements_for_the_roles_may_run_again(servers: Servers, empty: str) -> None:
    look = (
        "SELECT rolname::text, rolcanlogin, rolsuper, rolbypassrls FROM pg_roles WHERE rolname ~ '^notif_' ORDER BY 1"
    )
    access = "SELECT datacl::text FROM pg_database WHERE datname = current_database()"
    before = asked(servers, empty, look), asked(servers, empty, access)
    asked(servers, empty, "\n".join(roles.statements(empty)))
    roles.create(servers.admin(empty), {})
    assert (asked(servers, empty, look), asked(servers, empty, access)) == before
    assert [row[1:] for row in before[0]] == [(True, False, False)] * 4


def test_the_statements_quote_the_databases_name(servers: Servers) -> None:
    assert 'GRANT CREATE ON DATABASE "my ""odd"" name" TO notif_owner;' in roles.statements('my "odd" name')


def test_roles_need_somebody_who_may_make_them(servers: Servers, empty: str) -> None:
    with pytest.raises(NotifError, match=r"database roles: .*; `notif db roles --print` shows the SQL to run by hand"):
        roles.create(servers.url("notif_worker", empty), {"notif_worker": "x"})
