"""Field reports, each as a test named after it: what is right is in docs/reference/field-reports.md."""

from collections.abc import Iterator

import pytest

from tests.kit import Installation
from tests.reports.living import Living
from tests.spine.hands import Hands


@pytest.fixture
def hands(notif: Installation) -> Iterator[Hands]:
    made = Hands(notif)
    yield made
    made.close()


@pytest.fixture
def living(notif: Installation) -> Iterator[Living]:
    """Nothing runs yet."""
    made = Living(notif)
    yield made
    made.close()
