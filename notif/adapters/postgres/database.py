"""One pool of connections, and the one table that turns the server's errors into ours."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, TimeoutError
from sqlalchemy.orm import Session

from notif.errors import InvalidEnvelope, JobConflict, NotFound, NotifError, Refused, Unavailable, UnknownTenant

KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Seconds (the last: milliseconds). By default a vanished host's session, and its locks, live on for over two hours."""
READ_ONLY = ("25006", "25P03")
"""A primary that has become a standby, a session that was ended for its idling: another connection will do."""
TRANSACTION_LIMIT = "30s"
"""Our transactions end within this: an old snapshot slows every poll of the outbox."""


class DatabaseSurprise(Exception):
    """A database error that no code of ours expects."""


def driver_url(url: str) -> URL:
    """`postgresql://…` for SQLAlchemy and psycopg 3."""
    return make_url(url).set(drivername="postgresql+psycopg")


def translated(error: DBAPIError) -> NotifError | None:
    """Our error for one the server (or the way to it) raised; None if it is a surprise."""
    cause = error.orig
    if not isinstance(cause, psycopg.Error):
        return None
    text, detail = cause.diag.message_primary or "", cause.diag.message_detail or ""
    match cause.sqlstate:
        case "NT001":
            return JobConflict(f"job_id: {text} is in the outbox on {detail!r} with other content")
        case "NT002":
            hint = f"; did you mean {detail}?" if detail else "; none is known: notif tenants add"
            return UnknownTenant(f"tenant_id: {text} is no active tenant{hint}")
        case "NT003":
            return InvalidEnvelope(text)
        case "NT404":
            return NotFound(text)
        case "NT409":
            return Refused(text)
        case "42501":
            return Refused(f"the database says {text!r}: is the URL another role's?")
    gone = error.connection_invalidated or isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    if gone or cause.sqlstate in READ_ONLY:
        return Unavailable(
            f"Postgres does not answer: {str(cause).splitlines()[0] if str(cause) else type(cause).__name__}"
        )
    return None


def surprise(error: DBAPIError) -> Exception:
    """What nobody expected, without the values: SQLSTATE and message, which name columns and constraints only."""
    cause = error.orig
    if not isinstance(cause, psycopg.Error):
        return error
    return DatabaseSurprise(f"{type(cause).__name__} {cause.sqlstate}: {cause.diag.message_primary}")


def storable(text: str) -> str:
    """A provider's words as Postgres takes them: a NUL or half a surrogate pair would fail every settle of the job."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


@contextmanager
def translating() -> Iterator[None]:
    """Raises our errors instead of SQLAlchemy's; surprises pass as they are."""
    try:
        yield
    except TimeoutError as error:
        raise Unavailable(f"no database connection became free: {error}") from error
    except DBAPIError as error:
        raise translated(error) or surprise(error) from None  # the server's detail quotes the row


class HandlerSession(Session):
    """A handler's work is committed with its fence, or not at all: it can't end the transaction by itself."""

    def commit(self) -> None:
        """Raises TypeError: committed without its fence, the work would be done again at every delivery."""
        raise TypeError("a handler doesn't commit: its work is committed with the fence")

    def check(self) -> None:
        """Everything the handler wrote is sent and holds, deferred constraints too: else it would fail at the commit."""
        self.flush()
        self.connection().exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def rollback(self) -> None:
        """Raises TypeError."""
        raise TypeError("a handler doesn't roll back: it raises, or answers Retry, Deferred or Dead")


class Database:
    """A pool under one role's URL. Nothing is opened before the first call.

    `call` is one statement in autocommit: one round trip, and one commit if it writes.
    """

    def __init__(self, url: str, *, pool: int, name: str) -> None:
        self._engine = create_engine(
            driver_url(url),
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,  # a surprise is logged; what it was asked with is somebody's mail
            pool_size=pool,
            max_overflow=0,
            pool_timeout=10,
            connect_args={
                **KEEPALIVE,
                "connect_timeout": 5,
                "application_name": name,
                "options": f"-c idle_in_transaction_session_timeout={TRANSACTION_LIMIT}",
            },
        )
        self._transactional = self._engine.execution_options(isolation_level="READ COMMITTED")

    def call(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Rows of one statement. Raises our errors."""
        with translating(), self._engine.connect() as connection:
            result = connection.exec_driver_sql(statement, tuple(parameters))
            return list(result.fetchall()) if result.returns_rows else []

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, committed at the end, rolled back if anything is raised."""
        with translating(), self._transactional.begin() as connection:
            yield connection

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The same as an ORM session, for handlers."""
        with translating(), HandlerSession(self._transactional) as session, session.begin():
            yield session

    def close(self) -> None:
        self._engine.dispose()
