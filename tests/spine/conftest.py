"""A relay and a worker to move by hand."""

from collections.abc import Iterator

import pytest

from notif.relay import Relay, Route
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands
from tests.spine.relays import Clock, Counting, Leaky, Made


@pytest.fixture
def hands(notif: Installation) -> Iterator[Hands]:
    notif.rows("SELECT 1")
    made = Hands(notif)
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def carrier(hands: Hands) -> Leaky:
    return Leaky(hands.carrier)


@pytest.fixture
def outbox(hands: Hands) -> Counting:
    return Counting(hands.outbox)


@pytest.fixture
def made(hands: Hands, clock: Clock, carrier: Leaky, outbox: Counting) -> Made:
    """Makes a relay; `rate` is its provider's."""

    def make(rate: float | None = 1000.0, queue: str = EMAIL) -> Relay:
        route = Route(hands.terms(queue), rate)
        return Relay(outbox, carrier, [route], all_queues=[EMAIL, "loyalty"], log=hands.app.log, clock=clock)

    return make
