"""What the worker role sees of tenants: its own rows while a job's tenant is set, and nothing without."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.kit import EMAIL, Installation

Worker = psycopg.Connection[tuple[Any, ...]]


ENDED = """
INSERT INTO core.processed_job (job_id, consumer, tenant_id, cell_id, expires_at)
SELECT job_id, consumer, tenant_id, cell_id, now() FROM core.outbox;
INSERT INTO core.delivery (job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, verdict, attempts, history,
                           published_at, ended_at, expires_at)
SELECT job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, 'delivered', 1, history, created_at, now(), now()
FROM core.outbox;
INSERT INTO core.dead_letters (job_id, queue, consumer, tenant_id, cell_id, cause, last_error, outcome, created_at)
SELECT gen_random_uuid(), queue, consumer, tenant_id, cell_id, 'test', '', 'failed', now() FROM core.outbox
"""


@pytest.fixture
def two(notif: Installation) -> list[uuid.UUID]:
    """Two tenants, each with one row in every table that has a tenant."""
    tenants = [notif.tenant, notif.add_tenant("Other")]
    for tenant in tenants:
        notif.send(tenant=tenant)
    notif.rows(ENDED)
    return tenants


@pytest.fixture
def worker(notif: Installation) -> Iterator[Worker]:
    with psycopg.connect(notif.servers.url("notif_worker", notif.database), autocommit=True) as connection:
        yield connection


def readable(connection: Worker) -> list[tuple[str, str]]:
    """The tables with tenants that the role may select, each with its tenant's column."""
    query = (
        "SELECT relname, CASE relname WHEN 'tenant' THEN 'id' ELSE 'tenant_id' END FROM pg_class c "
        "WHERE relnamespace = 'core'::regnamespace AND relkind IN ('r', 'p') AND has_table_privilege(oid, 'SELECT') "
        "AND (relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id'))"
    )
    return [(row[0], row[1]) for row in connection.execute(query.encode())]


def seen(connection: Worker, table: str, column: str) -> list[Any]:
    return [row[0] for row in connection.execute(f"SELECT {column} FROM core.{table}".encode())]


def test_with_no_tenant_set_it_sees_nothing(two: list[uuid.UUID], worker: Worker) -> None:
    tables = readable(worker)
    assert sorted(name for name, _ in tables) == ["delivery", "processed_job", "tenant"]
    assert [row for table in tables for row in seen(worker, *table)] == []


def test_with_a_tenant_set_it_sees_that_tenants_rows(two: list[uuid.UUID], worker: Worker) -> None:
    for tenant in two:
        with worker.transaction():
            worker.execute("SELECT set_config('app.tenant_id', %s, true)", (str(tenant),))
            for table in readable(worker):
                assert seen(worker, *table) == [tenant], table


def test_after_a_transaction_local_setting_it_sees_nothing_again(two: list[uuid.UUID], worker: Worker) -> None:
    with worker.transaction():
        worker.execute("SELECT set_config('app.tenant_id', %s, true)", (str(two[0]),))
    assert worker.execute("SELECT current_setting('app.tenant_id', true)").fetchone() == ("",)
    assert [row for table in readable(worker) for row in seen(worker, *table)] == []


def test_something_that_is_no_tenant_is_an_error_and_not_everything(two: list[uuid.UUID], worker: Worker) -> None:
    worker.execute("SELECT set_config('app.tenant_id', 'acme', false)")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        worker.execute("SELECT FROM core.delivery")


@pytest.mark.parametrize("tenant", [True, False], ids=["with a tenant", "without"])
def test_it_writes_no_table(two: list[uuid.UUID], worker: Worker, tenant: bool) -> None:
    if tenant:
        worker.execute("SELECT set_config('app.tenant_id', %s, false)", (str(two[0]),))
    names = worker.execute(
        b"SELECT relname FROM pg_class WHERE relnamespace = 'core'::regnamespace AND relkind IN ('r', 'p')"
    ).fetchall()
    assert names
    for (name,) in names:
        for statement in (
            f"DELETE FROM core.{name}",
            f"INSERT INTO core.{name} DEFAULT VALUES",
            f"TRUNCATE core.{name}",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(statement.encode())


def test_were_it_granted_the_policies_would_still_hold(
    notif: Installation, two: list[uuid.UUID], worker: Worker
) -> None:
    """The second lock: a grant too much somewhere is no leak yet."""
    other = two[1]
    notif.rows("GRANT ALL ON core.outbox, core.dead_letters TO notif_worker")
    try:
        assert seen(worker, "outbox", "tenant_id") == []
        worker.execute("SELECT set_config('app.tenant_id', %s, false)", (str(two[0]),))
        assert seen(worker, "outbox", "tenant_id") == seen(worker, "dead_letters", "tenant_id") == [two[0]]
        assert worker.execute("UPDATE core.outbox SET lot = 'x' WHERE tenant_id = %s", (other,)).rowcount == 0
        assert worker.execute("DELETE FROM core.dead_letters WHERE tenant_id = %s", (other,)).rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            worker.execute("UPDATE core.outbox SET tenant_id = %s", (other,))
    finally:
        notif.rows("REVOKE ALL ON core.outbox, core.dead_letters FROM notif_worker")


def test_maintenance_sees_everything(notif: Installation, two: list[uuid.UUID]) -> None:
    with psycopg.connect(notif.servers.url("notif_maintenance", notif.database), autocommit=True) as connection:
        tables = readable(connection)
        assert len(tables) == 5
        for table in tables:
            assert sorted(seen(connection, *table)) == sorted(two), table


def test_a_publisher_knows_the_state_of_its_job_and_reads_no_row(notif: Installation, two: list[uuid.UUID]) -> None:
    job = notif.send()
    assert notif.state(job, EMAIL) == "ready"
    with (
        psycopg.connect(notif.servers.url("notif_publisher", notif.database), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT state FROM core.outbox WHERE job_id = %s", (job,))
