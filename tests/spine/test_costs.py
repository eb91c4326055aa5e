"""What a job costs the database: questions on the wire and commits that write, as docs/architecture.md states them."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from notif.adapters.postgres.database import Database
from notif.adapters.postgres.ledger import PostgresLedger
from notif.adapters.postgres.publisher import OutboxPublisher
from notif.adapters.postgres.relay import PostgresClosings
from notif.closings import Closings
from notif.ports import Publication
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libpq traces what it sends on Linux only")
Observer = psycopg.Connection[tuple[Any, ...]]
Cost = tuple[str, int, int]
"""A call: its function, the times it waited for the server, the transactions that were given a number."""
ASKED = re.compile(rb"^F\t\d+\t(Sync|Query)\b", re.MULTILINE)
"""What the server answers at once; everything else it collects. One of them is a round trip."""
STATEMENT = re.compile(r'^F\t\d+\t(?:Query\t |Parse\t "[^"]*" )"(.*?)"', re.MULTILINE)
# Any transaction of the server raises it, so somebody else (autovacuum) can add to what is counted, and take nothing from it.
NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
REPEATS = 3


class Metered(Database):
    """The real one, which writes down what each call costs."""

    def __init__(self, url: str, observer: Observer, trace: Path) -> None:
        super().__init__(url, pool=1, name="metered")
        self._observer, self._trace, self._file = observer, trace, trace.open("wb")
        self.costs: list[Cost] = []
        self._heard = 0
        event.listen(self._engine, "connect", self._traced)

    def call(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        asked, written = self._asked(), self._next()
        rows = super().call(statement, parameters)
        (name,) = re.findall(r"core\.(\w+)\(", statement)
        self.costs.append((name, self._asked() - asked, self._next() - written))
        return rows

    def close(self) -> None:
        super().close()
        self._file.close()

    def said(self) -> list[str]:
        """What was sent since this was last asked, statement by statement."""
        found = STATEMENT.findall(self._trace.read_text())[self._heard :]
        self._heard += len(found)
        return found

    def _traced(self, connection: Any, _record: object) -> None:
        connection.pgconn.trace(self._file.fileno())
        connection.pgconn.set_trace_flags(psycopg.pq.Trace.SUPPRESS_TIMESTAMPS)

    def _asked(self) -> int:
        return len(ASKED.findall(self._trace.read_bytes()))

    def _next(self) -> int:
        row = self._observer.execute(NEXT).fetchone()
        assert row
        return int(row[0])


@pytest.fixture
def observer(notif: Installation) -> Iterator[Observer]:
    with psycopg.connect(notif.servers.url("notif_owner", notif.database), autocommit=True) as connection:
        yield connection


@pytest.fixture
def worker(notif: Installation, hands: Hands, observer: Observer, tmp_path: Path) -> Iterator[Metered]:
    """Everything the worker asks of Postgres; what is closed it reads in the background, as a process does."""
    made = Metered(notif.servers.url("notif_worker", notif.database), observer, tmp_path / "trace")
    hands.ledger = PostgresLedger(made)
    hands.closings = Closings(PostgresClosings(made), lambda: 0.0)
    hands.closings.refresh()
    yield made
    made.close()


def least(costs: Sequence[Cost]) -> list[Cost]:
    """Of several repetitions, call by call."""
    each = len(costs) // REPEATS
    return [min(costs[at::each]) for at in range(each)]


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("email.message", [("gate", 1, 0), ("claim", 1, 1), ("settle", 1, 1)]),
        (
            "order.shipped",
            [("gate", 1, 0), ("claim", 1, 1), ("freeze", 1, 1), ("settle", 1, 1)],
        ),  # rendered, then frozen
    ],
)
def test_a_delivered_job(notif: Installation, hands: Hands, worker: Metered, kind: str, calls: list[Cost]) -> None:
    worker.costs.clear()
    for _ in range(REPEATS):
        notif.send(kind)
        assert hands.turn() == ["delivered"]
    assert len(worker.costs) == REPEATS * len(calls)
    assert least(worker.costs) == calls


def test_what_was_frozen_is_not_frozen_again(notif: Installation, hands: Hands, worker: Metered) -> None:
    notif.sandbox.faults([{"fault": "500"}])
    notif.send()
    assert hands.turn() == ["retrying"]
    notif.due()
    worker.costs.clear()
    assert hands.turn() == ["delivered"]
    assert [name for name, _, _ in worker.costs] == ["gate", "claim", "settle"]


def test_a_reference_that_names_nothing_any_more_is_one_look(
    notif: Installation, hands: Hands, worker: Metered
) -> None:
    notif.send()
    (ref,) = hands.pick()
    assert hands.handle(ref) == "delivered"
    worker.costs.clear()
    assert [hands.handle(ref) for _ in range(REPEATS)] == ["gone"] * REPEATS
    assert least(worker.costs) == [("gate", 1, 0)]


@pytest.mark.parametrize("count", [1, 500])
def test_publishing_is_one_statement_for_any_number(
    notif: Installation, observer: Observer, tmp_path: Path, count: int
) -> None:
    metered = Metered(notif.servers.url("notif_publisher", notif.database), observer, tmp_path / "trace")
    publisher = OutboxPublisher(metered, notif.app.checker)
    metered.call("SELECT core.status(gen_random_uuid())")  # what opening a connection costs is not counted
    metered.costs.clear()
    for _ in range(REPEATS):
        publisher.publish_many([Publication((EMAIL,), notif.envelope("email.message")) for _ in range(count)])
    metered.close()
    assert least(metered.costs) == [("publish", 1, 1)]


def test_a_handlers_work_and_its_fence_are_one_transaction(
    loyalty: Installation, hands: Hands, worker: Metered
) -> None:
    loyalty.send("points.earned", points=7)
    worker.costs.clear()
    worker.said()
    assert hands.turn("loyalty") == ["delivered"]
    assert worker.costs[0] == ("gate", 1, 0)
    assert [statement.split("(")[0] for statement in worker.said()] == [
        "SELECT * FROM core.gate",
        "SELECT * FROM core.claim",
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "SELECT core.begin_work",
        "SAVEPOINT sa_savepoint_1",
        "INSERT INTO public.loyalty VALUES ",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "RELEASE SAVEPOINT sa_savepoint_1",
        "SELECT core.settle",
        "COMMIT",
    ]
