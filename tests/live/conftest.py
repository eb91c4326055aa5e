"""After each test with real processes: nothing personal on Redis or in a log, and no secret."""

from collections.abc import Iterator

import pytest

from tests.privacy import leaks, secrets


@pytest.fixture(autouse=True)
def discreet(request: pytest.FixtureRequest) -> Iterator[None]:
    notif = request.getfixturevalue("notif") if "notif" in request.fixturenames else None
    yield
    if notif is not None:
        words = ["@example.test", *secrets(notif.servers)]
        assert leaks(notif.redis, notif.folder.rglob("*log*"), words) == []
