"""Joining a product's SQLAlchemy session without its database: for the queue in memory."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import event


def after_commit(session: Any, callback: Callable[[], None]) -> None:
    """Run `callback` once when the session's transaction commits; never if it is rolled back."""

    def committed(_session: Any) -> None:
        event.remove(session, "after_rollback", rolled_back)
        callback()

    def rolled_back(_session: Any) -> None:
        event.remove(session, "after_commit", committed)

    event.listen(session, "after_commit", committed, once=True)
    event.listen(session, "after_rollback", rolled_back, once=True)
