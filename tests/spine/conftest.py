"""A relay and a worker to move by hand."""

from collections.abc import Iterator

import pytest

from tests.kit import Installation
from tests.product import TABLE
from tests.spine.hands import Hands


@pytest.fixture
def hands(notif: Installation) -> Iterator[Hands]:
    notif.rows("SELECT 1")
    made = Hands(notif)
    yield made
    made.close()


@pytest.fixture
def loyalty(notif: Installation) -> Installation:
    """With the product's own table of points, empty."""
    notif.admin(TABLE + "; DELETE FROM public.loyalty")
    return notif
