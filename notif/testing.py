"""For users' tests: a queue in memory that checks as the real one does, and a pytest fixture of it.

    def test_shipping(notif_queue):
        ship(order, Notifier(notif_queue, notif_queue, notif_queue.kinds))
        assert [job.envelope.kind for job in notif_queue.jobs] == ["order.shipped"]

The pytest plugin is registered with the package; the fixture reads `NOTIF_CONFIG`, or `config/notif.yaml`.
"""

import os
from collections.abc import Collection
from uuid import UUID

import pytest

from notif.bootstrap.app import App
from notif.bootstrap.memory import MemoryJob, MemoryQueue, memory_queue

__all__ = ["MemoryJob", "MemoryQueue", "make_queue", "notif_queue"]


def make_queue(*, tenants: Collection[UUID] | None = None) -> MemoryQueue:
    """A queue in memory under this environment's configuration; no other setting is read. Raises ConfigurationError."""
    read = {name: os.environ[name] for name in ("NOTIF_CONFIG", "NOTIF_APP") if name in os.environ}
    return memory_queue(App.from_settings(read), tenants=tenants)


@pytest.fixture
def notif_queue() -> MemoryQueue:
    """A fresh queue in memory for every test."""
    return make_queue()
