"""What the design fixes about tables: the fence as the seed gives it, and row-level security wherever there is a tenant."""

from typing import Any

import psycopg

from tests.servers import Servers

WITHOUT_TENANT = {"audit", "incident", "installation", "notif_version", "process", "provider_state"}
"""Tables of the installation, not of a tenant. Another one without a tenant must be entered here by hand."""


def asked(servers: Servers, database: str, query: str) -> list[Any]:
    with psycopg.connect(servers.url("notif_owner", database), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def test_the_fences_columns(servers: Servers, database: str) -> None:
    query = (
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(d.adbin, d.adrelid) "
        "FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
        "WHERE attrelid = 'core.processed_job'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    assert asked(servers, database, query) == [
        ("job_id", "uuid", True, None),
        ("consumer", "character varying(80)", True, None),
        ("tenant_id", "uuid", True, None),
        ("cell_id", "uuid", True, None),
        ("processed_at", "timestamp with time zone", True, "now()"),
        ("expires_at", "timestamp with time zone", True, None),
        ("created_at", "timestamp with time zone", True, "now()"),
    ]


def test_the_fences_constraints_and_indexes(servers: Servers, database: str) -> None:
    constraints = asked(
        servers,
        database,
        "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = 'core.processed_job'::regclass AND contype <> 'n' ORDER BY 1",
    )
    indexes = asked(
        servers,
        database,
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'core' AND tablename = 'processed_job' ORDER BY 1",
    )
    assert constraints == [
        ("fk_processed_job_tenant", "FOREIGN KEY (tenant_id) REFERENCES core.tenant(id)"),
        ("pk_processed_job", "PRIMARY KEY (job_id, consumer)"),
    ]
    assert [row[0] for row in indexes] == [
        "CREATE INDEX idx_processed_job_expires ON core.processed_job USING btree (expires_at)",
        "CREATE UNIQUE INDEX pk_processed_job ON core.processed_job USING btree (job_id, consumer)",
    ]


def test_row_level_security_is_enabled_and_forced_wherever_there_is_a_tenant(servers: Servers, database: str) -> None:
    tables = asked(
        servers,
        database,
        "SELECT relname::text, relrowsecurity AND relforcerowsecurity, "
        "relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id') "
        "FROM pg_class c WHERE relnamespace = 'core'::regnamespace AND relkind IN ('r', 'p')",
    )
    assert {name for name, _, tenant in tables if not tenant} == WITHOUT_TENANT
    assert {name for name, secured, tenant in tables if tenant and not secured} == set()


def test_every_policy_there_is(servers: Servers, database: str) -> None:
    """Owner and maintenance see everything, a worker its tenant's rows; nobody else has a policy, so sees nothing."""
    mine = "({} = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)"
    expected = []
    for table in ("dead_letters", "delivery", "outbox", "processed_job", "tenant"):
        tenant = mine.format("id" if table == "tenant" else "tenant_id")
        expected += [
            (table, "maintenance", ["notif_maintenance"], "ALL", "PERMISSIVE", "true", "true"),
            (table, "owner", ["notif_owner"], "ALL", "PERMISSIVE", "true", "true"),
            (table, "tenant", ["notif_worker"], "ALL", "PERMISSIVE", tenant, tenant),
        ]
    query = (
        "SELECT tablename::text, policyname::text, roles::text[], cmd, permissive, qual, with_check FROM pg_policies "
        "WHERE schemaname = 'core' ORDER BY 1, 2"
    )
    assert asked(servers, database, query) == expected
