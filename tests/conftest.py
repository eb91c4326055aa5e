"""Fixtures: one PostgreSQL and one Valkey per pytest process, an empty installation per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notif.sandbox import Sandbox
from tests import servers as real
from tests.kit import Installation
from tests.product import TABLE


@pytest.fixture(scope="session")
def servers() -> Iterator[real.Servers]:
    with real.running() as found:
        yield found


@pytest.fixture(scope="session")
def database(servers: real.Servers) -> str:
    """The name of a migrated database; tests empty it before they begin."""
    return real.new_database(servers)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    started = Sandbox()
    started.start()
    yield started
    started.stop()


@pytest.fixture
def notif(servers: real.Servers, database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[Installation]:
    """An empty installation, no process started."""
    real.emptied(servers, database)
    made = Installation(servers, database, sandbox, tmp_path)
    made.sandbox.reset()
    yield made
    made.close()


@pytest.fixture
def loyalty(notif: Installation) -> Installation:
    """With the product's own table of points, empty."""
    notif.admin(TABLE + "; DELETE FROM public.loyalty")
    return notif
