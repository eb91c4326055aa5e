"""One stage for all schedules of a pytest process."""

from collections.abc import Iterator

import pytest

from tests.protocol.stage import Stage
from tests.servers import Servers, new_database


@pytest.fixture(scope="session")
def stage(servers: Servers) -> Iterator[Stage]:
    made = Stage(servers, new_database(servers))
    yield made
    made.close()
