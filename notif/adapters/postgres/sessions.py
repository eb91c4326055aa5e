"""Joining a product's SQLAlchemy session without its database: for the queue in memory."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction


def joined(session: Session | Connection, committed: Callable[[], None], dropped: Callable[[], None]) -> None:
    """Call one of the two, once: when the transaction that runs now commits for good, or when it is rolled back.

    A session's savepoints are followed: rolled back, what was published in them is dropped. A connection's are not.
    """
    if isinstance(session, Connection):
        event.listen(session, "commit", lambda _: committed(), once=True)
        event.listen(session, "rollback", lambda _: dropped(), once=True)
        return
    ended_already: list[bool] = []
    published_in = session.get_nested_transaction() or session.get_transaction()

    def after_commit(_: Session) -> None:
        if session.get_nested_transaction() is None:  # a savepoint's release is no commit
            end(committed)

    def after_soft_rollback(_: Session, ended: SessionTransaction) -> None:
        if ended in _with_parents(published_in):
            end(dropped)

    def end(what: Callable[[], None]) -> None:
        if not ended_already:  # a listener can't be removed while it is called
            ended_already.append(True)
            what()

    event.listen(session, "after_commit", after_commit)
    event.listen(session, "after_soft_rollback", after_soft_rollback)


def _with_parents(transaction: Any) -> list[Any]:
    found = []
    while transaction is not None:
        found.append(transaction)
        transaction = transaction.parent
    return found
