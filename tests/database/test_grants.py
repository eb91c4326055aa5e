"""Who may do what, all of it: a grant that is added or lost somewhere in `notif/migrations` fails here first."""

from typing import Any

import psycopg
import pytest

from tests.servers import Servers

TABLES = {
    "audit": {"maintenance": "INSERT SELECT"},
    "audit_id_seq": {},
    "dead_letters": {"maintenance": "DELETE INSERT SELECT UPDATE"},
    "dead_letters_id_seq": {},
    "delivery": {"maintenance": "DELETE SELECT", "worker": "SELECT"},
    "delivery_id_seq": {},
    "generation": {},
    "incident": {"maintenance": "DELETE INSERT SELECT UPDATE"},
    "installation": {"maintenance": "SELECT", "worker": "SELECT"},
    "notif_version": {"maintenance": "SELECT"},
    "outbox": {"maintenance": "DELETE INSERT SELECT UPDATE"},
    "process": {"maintenance": "DELETE INSERT SELECT UPDATE", "worker": "SELECT"},
    "processed_job": {"maintenance": "SELECT", "worker": "SELECT"},
    "provider_state": {"maintenance": "DELETE INSERT SELECT UPDATE"},
    "tenant": {"maintenance": "INSERT SELECT UPDATE", "worker": "SELECT"},
}
"""Table or sequence → who may do what, beside their owner."""

FUNCTIONS = {
    "beat": "maintenance worker",
    "begin_work": "worker",
    "blocked": "maintenance",
    "bury": "maintenance",
    "bury_poison": "worker",
    "cancel": "maintenance publisher worker",
    "claim": "worker",
    "clean_deliveries": "maintenance",
    "clean_fences": "maintenance",
    "clean_letters": "maintenance",
    "clean_processes": "maintenance",
    "clock": "maintenance worker",
    "close_provider": "maintenance worker",
    "closings": "maintenance worker",
    "content_hash": "",
    "discard": "maintenance",
    "end_lost": "maintenance",
    "expired": "maintenance",
    "fence": "maintenance",
    "finish": "",
    "finish_unsent": "",
    "freeze": "worker",
    "gate": "worker",
    "give_back": "worker",
    "hold_halted": "maintenance",
    "move": "",
    "nearest_tenant": "",
    "obstacle": "",
    "open_circuit": "worker",
    "pending_letter": "maintenance",
    "pick": "maintenance",
    "probed": "worker",
    "publish": "maintenance publisher worker",
    "remember": "maintenance",
    "renew": "worker",
    "repeatable": "maintenance",
    "replay": "maintenance",
    "requeue": "maintenance",
    "resume": "maintenance",
    "seconds_until": "maintenance",
    "settle": "worker",
    "settle_gate": "",
    "status": "maintenance publisher worker",
    "tenants_due": "maintenance",
    "turn": "maintenance",
    "wake_halted": "maintenance",
    "watermark": "maintenance",
}
"""Function → who may execute it, beside its owner. What PUBLIC may (the default for a new function) counts."""

RELATIONS = """
SELECT c.relname::text, replace(coalesce(r.rolname, 'PUBLIC'), 'notif_', ''),
       string_agg(a.privilege_type, ' ' ORDER BY a.privilege_type) FILTER (WHERE a.grantee <> c.relowner)
FROM pg_class c
CROSS JOIN LATERAL (
  SELECT * FROM aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)))
  UNION ALL SELECT x.* FROM pg_attribute t CROSS JOIN aclexplode(t.attacl) x WHERE t.attrelid = c.oid
) a
LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE c.relnamespace = 'core'::regnamespace AND c.relkind NOT IN ('i', 'I', 't', 'c') GROUP BY 1, 2
"""
ROUTINES = """
SELECT p.proname::text,
       coalesce(string_agg(DISTINCT replace(coalesce(r.rolname, 'PUBLIC'), 'notif_', ''), ' ')
                FILTER (WHERE a.grantee <> p.proowner), '')
FROM pg_proc p CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE p.pronamespace = 'core'::regnamespace GROUP BY 1
"""


def asked(servers: Servers, database: str, query: str) -> list[Any]:
    with psycopg.connect(servers.admin(database), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def test_every_grant_there_is(servers: Servers, database: str) -> None:
    tables: dict[str, dict[str, str]] = {}
    for table, role, privileges in asked(servers, database, RELATIONS):
        found = tables.setdefault(table, {})
        if privileges:
            found[role] = privileges
    schema = asked(
        servers,
        database,
        "SELECT replace(coalesce(r.rolname, 'PUBLIC'), 'notif_', ''), a.privilege_type FROM pg_namespace n "
        "CROSS JOIN aclexplode(n.nspacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee WHERE n.nspname = 'core'",
    )
    assert tables == TABLES
    assert dict(asked(servers, database, ROUTINES)) == FUNCTIONS
    assert sorted(schema) == [
        ("maintenance", "USAGE"),
        ("owner", "CREATE"),
        ("owner", "USAGE"),
        ("publisher", "USAGE"),
        ("worker", "USAGE"),
    ]


def test_everything_is_the_owners(servers: Servers, database: str) -> None:
    query = (
        "SELECT relowner::regrole::text FROM pg_class WHERE relnamespace = 'core'::regnamespace "
        "UNION SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'core'::regnamespace "
        "UNION SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'core'"
    )
    assert asked(servers, database, query) == [("notif_owner",)]


def test_a_definers_function_looks_nowhere_but_where_it_says(servers: Servers, database: str) -> None:
    """Else a caller's own schema before it in the search path would run under the owner's rights."""
    query = (
        "SELECT proname FROM pg_proc WHERE pronamespace = 'core'::regnamespace AND prosecdef "
        "AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)"
    )
    assert asked(servers, database, query) == []


def test_no_function_keeps_a_plan_that_reads_a_whole_table(servers: Servers, database: str) -> None:
    """The outbox is empty most of the time: a plan made then would read all of it, for each row of a flood."""
    query = (
        "SELECT proname FROM pg_proc WHERE pronamespace = 'core'::regnamespace AND proconfig IS NOT NULL "
        "AND NOT 'enable_seqscan=off' = ANY (proconfig)"
    )
    assert asked(servers, database, query) == []


def test_nobody_is_above_the_policies(servers: Servers, database: str) -> None:
    query = (
        "SELECT rolname::text, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication FROM pg_roles "
        "WHERE rolname ~ '^notif_' ORDER BY 1"
    )
    names = ["notif_maintenance", "notif_owner", "notif_publisher", "notif_worker"]
    assert asked(servers, database, query) == [(name, False) for name in names]
    query = "SELECT member::regrole::text, roleid::regrole::text FROM pg_auth_members WHERE member::regrole::text ~ '^notif_'"
    assert asked(servers, database, query) == [("notif_maintenance", "pg_read_all_stats")]  # whose snapshot is old


@pytest.mark.parametrize("role", ["notif_publisher", "notif_worker", "notif_maintenance"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE core.processed_job SET expires_at = now()",
        "DELETE FROM core.processed_job",
        "TRUNCATE core.processed_job",
        "INSERT INTO core.processed_job (job_id, consumer, tenant_id, cell_id, expires_at) "
        "VALUES (gen_random_uuid(), 'x', gen_random_uuid(), gen_random_uuid(), now())",
    ],
)
def test_a_fence_is_written_by_the_functions_alone(servers: Servers, database: str, role: str, statement: str) -> None:
    with (
        psycopg.connect(servers.url(role, database), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_the_publisher_reads_no_table(servers: Servers, database: str) -> None:
    with psycopg.connect(servers.url("notif_publisher", database), autocommit=True) as connection:
        for table in TABLES:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM core.{table}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(b"CREATE TABLE core.mine ()")
