"""The pool after a bad moment: a connection that has ended is noticed before it is lent, not by the job that borrows it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest

from notif.adapters.postgres.database import Database
from notif.errors import Unavailable
from tests.servers import Servers

SIZE = 4


@pytest.fixture
def pool(servers: Servers, database: str) -> Iterator[Database]:
    """Every connection of it is open and idle."""
    made = Database(servers.url("notif_worker", database), pool=SIZE, name="pool-test")
    together = Barrier(SIZE)

    def hold() -> None:
        with made.transaction() as connection:
            connection.exec_driver_sql("SELECT 1")
            together.wait(10)

    with ThreadPoolExecutor(SIZE) as threads:
        for done in [threads.submit(hold) for _ in range(SIZE)]:
            done.result()
    yield made
    made.close()


def end_sessions(servers: Servers, database: str) -> int:
    """As a restart or a failover does; answers how many there were."""
    query = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = 'pool-test'"
    with psycopg.connect(servers.admin(database), autocommit=True) as admin:
        found = admin.execute(query).fetchone()
    return int(found[0]) if found else 0


def test_ended_sessions_fail_no_call(servers: Servers, database: str, pool: Database) -> None:
    assert end_sessions(servers, database) == SIZE
    assert [pool.call("SELECT 1") for _ in range(SIZE + 1)] == [[(1,)]] * (SIZE + 1)


def test_ended_sessions_fail_no_transaction(servers: Servers, database: str, pool: Database) -> None:
    assert end_sessions(servers, database) == SIZE
    for _ in range(SIZE):
        with pool.transaction() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_session_that_ends_under_a_call_is_unavailable_once(servers: Servers, database: str, pool: Database) -> None:
    with pytest.raises(Unavailable, match="terminating connection"):
        pool.call("SELECT pg_terminate_backend(pg_backend_pid())")
    assert pool.call("SELECT 1") == [(1,)]


def test_a_primary_that_became_a_standby_is_left(servers: Servers, database: str, pool: Database) -> None:
    """Its sessions live on and can only read: the next call asks for the new primary."""
    pool.call("SET default_transaction_read_only = on")
    beat = "SELECT core.beat('here', 1, 'worker', 'x', now(), '')"
    said = [answer for _ in range(2 * SIZE) if (answer := outcome(pool, beat))]
    assert len(said) == 1
    assert "read-only" in said[0]


def outcome(pool: Database, statement: str) -> str:
    """Why it is refused; empty: it isn't."""
    try:
        pool.call(statement)
    except Unavailable as error:
        return str(error)
    return ""
