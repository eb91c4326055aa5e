"""The queue in memory, bound like the real one."""

from collections.abc import Collection
from uuid import UUID

from notif.adapters.memory import MemoryJob, MemoryQueue
from notif.adapters.postgres.sessions import joined
from notif.bootstrap.app import App

__all__ = ["MemoryJob", "MemoryQueue", "memory_queue"]


def memory_queue(app: App, *, tenants: Collection[UUID] | None = None) -> MemoryQueue:
    """The same checks, configuration and consumers as the outbox; `tenants`: those that are known, None: all."""
    return MemoryQueue(app.checker, app.kinds, now=app.now, join=joined, tenants=tenants)
