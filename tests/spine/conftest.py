"""A relay and a worker to move by hand."""

from collections.abc import Iterator

import pytest

from tests.kit import Installation
from tests.spine.hands import Hands


@pytest.fixture
def hands(notif: Installation) -> Iterator[Hands]:
    notif.rows("SELECT 1")
    made = Hands(notif)
    yield made
    made.close()
