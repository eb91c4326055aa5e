"""A product's own consumers: work, fence and the row's end are one transaction, whatever the handler answers."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from notif.envelope import Envelope
from notif.notifier import Notifier
from notif.ports import Reference
from notif.sandbox import Sandbox
from notif.verdict import Cancelled, Delivered, Duplicate, Expired, Retry, Verdict
from tests import servers as real
from tests.kit import CONFIG, EMAIL, Installation
from tests.product import TABLE, credit
from tests.spine.hands import Hands

LOYALTY = "loyalty"
POINTS = "points.earned"


@pytest.fixture
def hands(loyalty: Installation) -> Iterator[Hands]:
    made = Hands(loyalty)
    yield made
    made.close()


def points(notif: Installation) -> list[int]:
    return sorted(row[0] for row in notif.admin("SELECT points FROM public.loyalty"))


def row(notif: Installation) -> Any:
    """State, attempts and the last move's note of the one row in the outbox."""
    (found,) = notif.rows("SELECT state, attempts, history -> -1 ->> 'note' FROM core.outbox")
    return found


def fences(notif: Installation) -> list[str]:
    return [found[0] for found in notif.rows("SELECT consumer FROM core.processed_job ORDER BY consumer")]


def answering(loyalty: Installation, hands: Hands, answer: str) -> str:
    loyalty.send(POINTS, points=7, answer=answer)
    (turn,) = hands.turn(LOYALTY)
    return turn


def test_three_redeliveries_of_one_reference_credit_once(loyalty: Installation, hands: Hands) -> None:
    loyalty.send(POINTS, points=7)
    (ref,) = hands.push(LOYALTY)
    assert [hands.handle(ref) for _ in range(4)] == ["delivered", "gone", "gone", "gone"]
    assert (points(loyalty), fences(loyalty)) == ([7], ["loyalty-points"])
    assert loyalty.rows("SELECT verdict, attempts FROM core.delivery") == [("delivered", 1)]


def test_a_connection_lost_in_the_handler_is_no_failure_of_the_handlers(loyalty: Installation, hands: Hands) -> None:
    """Found by the harness (seed 11): nothing is left to settle in, so the lease brings it back; it is credited once."""

    def lose(session: Any, envelope: Envelope) -> Verdict:
        credit(session, envelope)
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return Delivered()

    hands.app.handlers[LOYALTY] = lose
    loyalty.send(POINTS, points=7)
    assert hands.turn(LOYALTY) == ["unavailable"]
    assert (row(loyalty)[:2], points(loyalty), fences(loyalty)) == (("claimed", 1), [], [])
    hands.app.handlers[LOYALTY] = credit
    loyalty.due()
    assert hands.turn(LOYALTY) == ["delivered"]
    assert points(loyalty) == [7]


def test_one_job_for_mail_and_points(loyalty: Installation, hands: Hands) -> None:
    job = loyalty.send("order.placed", **loyalty.envelope().data, points=10)
    refs = hands.push() + hands.push(LOYALTY)
    assert [hands.handle(ref) for ref in refs * 3] == ["delivered"] * 2 + ["gone"] * 4
    assert (points(loyalty), len(loyalty.mails_of(job))) == ([10], 1)
    assert fences(loyalty) == ["loyalty-points", EMAIL]


@pytest.fixture
def two(servers: real.Servers, database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[Installation]:
    """With a second consumer of the same jobs, on a queue of its own."""
    config = yaml.safe_load(CONFIG.read_text())
    config["templates"] = str(CONFIG.parent / config["templates"])
    config["queues"]["statistics"] = {"consumer": "points-statistics"}
    config["kinds"][POINTS]["queues"] = [LOYALTY, "statistics"]
    (tmp_path / "notif.yaml").write_text(yaml.safe_dump(config))
    real.emptied(servers, database)
    made = Installation(servers, database, sandbox, tmp_path, tmp_path / "notif.yaml")
    made.sandbox.reset()
    made.admin(TABLE + "; DELETE FROM public.loyalty")
    yield made
    made.close()


def test_two_consumers_of_one_job_credit_once_each(two: Installation) -> None:
    hands = Hands(two)
    hands.app.consumer("points-statistics", "statistics", credit)
    two.send(POINTS, points=7)
    refs = hands.push(LOYALTY) + hands.push("statistics")
    assert [hands.handle(ref) for ref in refs * 3] == ["delivered"] * 2 + ["gone"] * 4
    assert (points(two), fences(two)) == ([7, 7], ["loyalty-points", "points-statistics"])
    hands.close()


def test_two_consumers_end_without_each_other(two: Installation) -> None:
    hands = Hands(two)
    hands.app.consumer("points-statistics", "statistics", lambda session, envelope: Retry("not yet"))
    job = two.send(POINTS, points=7)
    assert (hands.turn("statistics"), hands.turn(LOYALTY)) == (["retrying"], ["delivered"])
    states = {status.queue: status.state for status in two.app.queue.status(job)}
    assert states == {LOYALTY: "delivered", "statistics": "retrying"}
    assert two.app.queue.cancel(job) == {LOYALTY: False, "statistics": True}
    hands.close()


# ---- what it may answer


def test_suppressed_keeps_the_work_and_ends_the_job(loyalty: Installation, hands: Hands) -> None:
    assert answering(loyalty, hands, "suppress") == "suppressed"
    assert (points(loyalty), fences(loyalty)) == ([7], ["loyalty-points"])
    assert loyalty.rows("SELECT verdict, reason FROM core.delivery") == [("suppressed", "no points for this one")]


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("retry", ("retrying", 1, "not now")),
        ("defer", ("ready", 0, "later")),
        ("raise", ("retrying", 1, "ValueError in the handler")),
        ("unavailable", ("retrying", 1, "Unavailable in the handler")),
    ],
)
def test_what_is_tried_again_rolls_the_work_back(
    loyalty: Installation, hands: Hands, answer: str, left: tuple[str, int, str]
) -> None:
    assert answering(loyalty, hands, answer) == left[0]
    assert (points(loyalty), fences(loyalty), row(loyalty)) == ([], [], left)
    assert hands.pick(LOYALTY) == []  # not before its slot


def test_dead_rolls_the_work_back_and_leaves_a_letter(loyalty: Installation, hands: Hands) -> None:
    assert answering(loyalty, hands, "dead") == "dead"
    assert (points(loyalty), fences(loyalty)) == ([], [])
    letter = "SELECT cause, outcome, attempts, last_error, consumer FROM core.dead_letters"
    assert loyalty.rows(letter) == [("refused", "failed", 1, "a person must look", "loyalty-points")]


def test_a_handler_that_always_fails_is_a_letter_after_its_attempts(loyalty: Installation, hands: Hands) -> None:
    loyalty.send(POINTS, points=7, answer="retry")
    turns = []
    for _ in range(5):
        turns += hands.turn(LOYALTY)
        loyalty.due()
    assert turns == ["retrying"] * 4 + ["dead"]
    assert loyalty.rows("SELECT cause, outcome, attempts FROM core.dead_letters") == [("attempts_spent", "failed", 5)]
    assert points(loyalty) == []


def test_a_letter_put_back_is_credited_once(loyalty: Installation, hands: Hands) -> None:
    job = loyalty.send(POINTS, points=7, answer="dead")
    hands.turn(LOYALTY)
    (letter,) = loyalty.app.letters.list()
    loyalty.rows("""UPDATE core.dead_letters SET snapshot = jsonb_set(snapshot, '{data,answer}', '"delivered"')""")
    assert loyalty.app.letters.replay(letter.id, None, accept=False, who="ann") == job
    assert hands.turn(LOYALTY) == ["delivered"]
    assert points(loyalty) == [7]


@pytest.mark.parametrize("answer", [None, True, "delivered", Delivered, Duplicate(), Expired(), Cancelled()], ids=repr)
def test_what_is_no_answer_is_a_retry_that_says_so(loyalty: Installation, hands: Hands, answer: Any) -> None:
    def handler(session: Any, envelope: Envelope) -> Any:
        credit(session, envelope)
        return answer

    hands.app.handlers[LOYALTY] = handler
    assert answering(loyalty, hands, "delivered") == "retrying"
    assert (points(loyalty), fences(loyalty)) == ([], [])
    assert row(loyalty)[2] == (
        f"TypeError in the handler: it returned {type(answer).__name__}, not Delivered, Suppressed, Dead, Deferred, Retry"
    )


# ---- its transaction


def test_a_handler_sees_its_tenant_only(loyalty: Installation, hands: Hands) -> None:
    """Row-level security with the job's tenant: of core's tables, and of the product's own if it says so."""
    other = loyalty.add_tenant("Other")
    seen: dict[uuid.UUID, Any] = {}

    def handler(session: Any, envelope: Envelope) -> Verdict:
        tenants = session.execute(text("SELECT id FROM core.tenant")).scalars().all()
        delivered = session.execute(text("SELECT DISTINCT tenant_id FROM core.delivery")).scalars().all()
        seen[envelope.tenant_id] = (tenants, delivered)
        return Delivered()

    hands.app.handlers[LOYALTY] = handler
    for _ in range(2):
        loyalty.send(POINTS, points=1)
        loyalty.send(POINTS, points=1, tenant=other)
        assert hands.turn(LOYALTY) == ["delivered"] * 2
    assert seen == {tenant: ([tenant], [tenant]) for tenant in (loyalty.tenant, other)}


def test_a_follow_up_job_is_published_with_the_work_or_not_at_all(loyalty: Installation, hands: Hands) -> None:
    notifier = Notifier(hands.app.queue, hands.app.queue, hands.app.kinds)

    def handler(session: Any, envelope: Envelope) -> Verdict:
        credit(session, envelope)
        data = {"email": "ann@example.test", "name": "Ann", "order_number": "A-1", "carrier": "DHL"}
        notifier.send(tenant_id=envelope.tenant_id, kind="order.shipped", data=data, session=session)
        return Retry("not now") if envelope.data["answer"] == "retry" else Delivered()

    hands.app.handlers[LOYALTY] = handler
    assert answering(loyalty, hands, "retry") == "retrying"
    assert (points(loyalty), hands.pick()) == ([], [])
    loyalty.rows("""UPDATE core.outbox SET data = jsonb_set(data, '{answer}', '"delivered"')""")
    loyalty.due()
    assert hands.turn(LOYALTY) == ["delivered"]
    assert hands.turn() == ["delivered"]
    assert (points(loyalty), len(loyalty.mails())) == ([7], 1)


def test_a_constraint_that_fails_at_the_flush_is_a_retry(loyalty: Installation, hands: Hands) -> None:
    def handler(session: Any, envelope: Envelope) -> Verdict:
        credit(session, envelope)
        session.execute(text("INSERT INTO public.loyalty VALUES (NULL, NULL, 1)"))
        return Delivered()

    hands.app.handlers[LOYALTY] = handler
    assert answering(loyalty, hands, "delivered") == "retrying"
    assert (points(loyalty), fences(loyalty)) == ([], [])


def test_a_database_error_the_handler_swallows_is_no_success(loyalty: Installation, hands: Hands) -> None:
    def handler(session: Any, envelope: Envelope) -> Verdict:
        credit(session, envelope)
        try:
            session.execute(text("SELECT 1 / 0"))
        except Exception:
            return Delivered()
        raise AssertionError

    hands.app.handlers[LOYALTY] = handler
    answering(loyalty, hands, "delivered")
    assert (points(loyalty), fences(loyalty), row(loyalty)[1]) == ([], [], 1)
    hands.app.handlers[LOYALTY] = credit
    loyalty.due()  # its lease has run out
    assert hands.turn(LOYALTY) == ["delivered"]
    assert points(loyalty) == [7]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("commit", "a handler doesn't commit: its work is committed with the fence"),
        ("rollback", "a handler doesn't roll back: it raises, or answers Retry, Deferred or Dead"),
    ],
)
def test_a_handler_cannot_tear_work_and_fence_apart(loyalty: Installation, hands: Hands, call: str, why: str) -> None:
    def handler(session: Any, envelope: Envelope) -> Verdict:
        credit(session, envelope)
        getattr(session, call)()
        return Delivered()

    hands.app.handlers[LOYALTY] = handler
    assert answering(loyalty, hands, "delivered") == "retrying"
    assert (points(loyalty), fences(loyalty)) == ([], [])
    assert row(loyalty)[2] == f"TypeError in the handler: {why}"


def test_a_handler_may_use_savepoints(loyalty: Installation, hands: Hands) -> None:
    def handler(session: Any, envelope: Envelope) -> Verdict:
        with pytest.raises(Exception, match="division by zero"), session.begin_nested():
            session.execute(text("SELECT 1 / 0"))
        with session.begin_nested():
            credit(session, envelope)
        return Delivered()

    hands.app.handlers[LOYALTY] = handler
    assert answering(loyalty, hands, "delivered") == "delivered"
    assert (points(loyalty), fences(loyalty)) == ([7], ["loyalty-points"])


def test_a_worker_that_lost_its_claim_does_no_work(loyalty: Installation, hands: Hands) -> None:
    loyalty.send(POINTS, points=7)
    (ref,) = hands.pick(LOYALTY)
    again: list[Reference] = []
    real_work = hands.ledger.work

    class Late:
        """The real ledger; between claim and work the lease ran out, and the relay pushed the row again."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        def work(self, *arguments: Any) -> Any:
            loyalty.due()
            again.extend(hands.pick(LOYALTY))
            return real_work(*arguments)

    ledger, hands.ledger = hands.ledger, Late()
    assert hands.handle(ref) == "gone"
    assert points(loyalty) == []
    hands.ledger = ledger
    assert [hands.handle(one) for one in again] == ["delivered"]
    assert (points(loyalty), loyalty.rows("SELECT attempts FROM core.delivery")) == ([7], [(2,)])
