"""What a statement reads grows with what it is for, not with what waits, whatever the planner believes about the outbox.

An outbox is empty when it is analysed and full an hour later: the plans that were made then are the ones a flood meets.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from notif.adapters.postgres.ledger import CLAIM, FREEZE, GATE, SETTLE
from notif.adapters.postgres.relay import PICK
from notif.ports import Publication
from notif.relay import NOBODY
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

Before = Callable[[Installation, Hands], None]
WINDOW = 50
READ = """
SELECT sum(pg_stat_get_xact_tuples_returned(oid))::int FROM pg_class
WHERE oid = 'core.outbox'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'core.outbox'::regclass)
"""
"""Index entries and rows of the outbox that this session's transaction has read."""


def without_statistics(notif: Installation, hands: Hands) -> None:
    del notif, hands


def with_those_of_an_empty_table(notif: Installation, hands: Hands) -> None:
    """And the plans that were made and kept then: PL/pgSQL keeps one from the sixth time on."""
    notif.admin("VACUUM ANALYZE core.outbox")
    for _ in range(10):
        hands.pick()


def with_those_of_a_small_one(notif: Installation, hands: Hands) -> None:
    notif.send_many(200)
    notif.admin("VACUUM ANALYZE core.outbox")
    for ref in [hands.pick(window=4 * turn)[0] for turn in range(1, 11)]:
        assert hands.handle(ref) == "delivered"
    notif.admin("DELETE FROM core.outbox")


@pytest.fixture(
    params=[without_statistics, with_those_of_an_empty_table, with_those_of_a_small_one], ids=lambda f: f.__name__
)
def flood(request: pytest.FixtureRequest, notif: Installation, hands: Hands) -> Callable[[timedelta | None], None]:
    """2,000 jobs that wait, for as long as asked, and 1,000 that are due; published with the statistics of another time."""
    notif.admin("TRUNCATE core.outbox")
    request.param(notif, hands)

    def publish(later: timedelta | None = None) -> None:
        wait = datetime.now(UTC) + later if later else None
        notif.app.queue.publish_many([Publication((EMAIL,), notif.envelope(), wait) for _ in range(2000)])
        notif.send_many(1000)

    return publish


def cost(session: Connection, statement: str, arguments: tuple[Any, ...]) -> tuple[int, list[Any]]:
    """What it reads, and its rows."""
    before = session.exec_driver_sql(READ).scalar_one()
    rows = list(session.exec_driver_sql(statement, arguments).fetchall())
    return session.exec_driver_sql(READ).scalar_one() - before, rows


@pytest.mark.parametrize("later", [None, timedelta(days=7)], ids=["flood", "backlog"])
def test_a_pick_reads_the_500_oldest_and_what_it_picks(
    hands: Hands, flood: Callable[[timedelta | None], None], later: timedelta | None
) -> None:
    flood(later)
    with hands.app.maintenance.transaction() as relay:
        turn = ([EMAIL], ["resend"], [True], [5], [WINDOW], [NOBODY], [None])
        read, rows = cost(relay, PICK, turn)
    assert len(rows) == WINDOW
    assert read <= 500 + 20 * WINDOW


def test_an_idle_poll_reads_a_row_whatever_waits_for_later(
    notif: Installation, hands: Hands, flood: Callable[[timedelta | None], None]
) -> None:
    flood(timedelta(days=7))
    while hands.pick():
        pass
    notif.admin("DELETE FROM core.outbox WHERE state = 'pushed'")
    notif.admin("VACUUM core.outbox")
    with hands.app.maintenance.transaction() as relay:
        read, rows = cost(relay, PICK, ([EMAIL], ["resend"], [True], [5], [WINDOW], [NOBODY], [None]))
    assert (rows, read <= 3) == ([], True)


def test_a_workers_statement_reads_its_own_row(hands: Hands, flood: Callable[[timedelta | None], None]) -> None:
    flood(None)
    refs = hands.pick(window=500)
    terms = hands.terms()
    with hands.database.transaction() as worker:
        for ref in refs[:10]:
            me = (ref.job_id, ref.queue)
            claimed = ref.generation + 1
            steps = [
                (GATE, (*me, ref.generation, terms.provider, terms.key_lifetime)),
                (CLAIM, (*me, ref.generation, terms.provider, terms.key_lifetime, terms.lease, None)),
                (FREEZE, (*me, claimed, b"{}")),
                (SETTLE, (*me, claimed, terms.key_lifetime, 5, "delivered", None, "", "", "", "x", False, None)),
            ]
            for statement, arguments in steps:
                assert cost(worker, statement, arguments)[0] <= 8, statement
