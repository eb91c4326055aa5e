"""A handler's deferred constraints: they are asked before the fence is written, not at its commit."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from notif.envelope import Envelope
from notif.verdict import Delivered, Verdict
from tests.kit import Installation
from tests.spine.hands import Hands

LOYALTY = "loyalty"
BOOKS = """
CREATE TABLE public.account (name text PRIMARY KEY);
CREATE TABLE public.booking (account text REFERENCES public.account DEFERRABLE INITIALLY DEFERRED);
GRANT SELECT, INSERT ON public.account, public.booking TO notif_worker
"""


@pytest.fixture
def books(notif: Installation) -> Iterator[Installation]:
    notif.admin(BOOKS)
    yield notif
    notif.admin("DROP TABLE public.booking, public.account")


def booked(notif: Installation) -> list[Any]:
    return notif.admin("SELECT account FROM public.booking")


def fences(notif: Installation) -> Any:
    return notif.one("SELECT count(*) FROM core.processed_job")


def test_a_deferred_constraint_that_does_not_hold_is_a_retry_without_a_fence(books: Installation, hands: Hands) -> None:
    accounts: list[str] = []

    def handler(session: Any, envelope: Envelope) -> Verdict:
        session.execute(text("INSERT INTO public.booking VALUES ('ann')"))
        for name in accounts:  # after what refers to it: that is what a deferred constraint is for
            session.execute(text("INSERT INTO public.account VALUES (:name)"), {"name": name})
        return Delivered()

    hands.app.handlers[LOYALTY] = handler
    job = books.send("points.earned", points=7)
    assert hands.turn(LOYALTY) == ["retrying"]
    assert (booked(books), fences(books)) == ([], 0)
    row = "SELECT state, attempts, history -> -1 ->> 'note' FROM core.outbox WHERE job_id = %s"
    assert books.rows(row, job) == [("retrying", 1, "IntegrityError in the handler")]

    accounts.append("ann")
    books.due()
    assert hands.turn(LOYALTY) == ["delivered"]
    assert (booked(books), fences(books)) == ([("ann",)], 1)
