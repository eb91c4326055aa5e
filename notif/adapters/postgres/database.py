"""One pool of connections, and the one table that turns the server's errors into ours."""

import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, TimeoutError
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


def translated(error: DBAPIError | psycopg.Error) -> NotifError | None:
    """Our error for one the server (or the way to it) raised; None if it is a surprise."""
    cause = error.orig if isinstance(error, DBAPIError) else error
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
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) or cause.sqlstate in READ_ONLY:
        return Unavailable(
            f"Postgres does not answer: {str(cause).splitlines()[0] if str(cause) else type(cause).__name__}"
        )
    return None


def surprise(error: DBAPIError | psycopg.Error) -> Exception:
    """What nobody expected, without the values: SQLSTATE and message, which name columns and constraints only."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, psycopg.Error):
        return error
    said = cause.diag.message_primary or str(cause)
    return DatabaseSurprise(f"{type(cause).__name__} {cause.sqlstate}: {said}")


def storable(text: str) -> str:
    """A provider's words as Postgres takes them: a NUL or half a surrogate pair would fail every settle of the job."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


@contextmanager
def translating() -> Iterator[None]:
    """Raises our errors instead of SQLAlchemy's and the driver's."""
    try:
        yield
    except TimeoutError as error:
        raise Unavailable(f"no database connection became free: {error}") from error
    except (DBAPIError, psycopg.Error) as error:
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
    """A pool under one role's URL. Nothing is opened before the first call, and a forked child opens its own.

    `call` is one statement in autocommit: one round trip, and one commit if it writes. It goes to the driver directly:
    SQLAlchemy's result objects cost a job 0.6 ms, an eighth of what its worker computes (ADR 0017).
    """

    def __init__(self, url: str, *, pool: int, name: str) -> None:
        self.url, self.pool = url, pool
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
        self._lost_at = 0.0
        self._pid = os.getpid()
        event.listen(self._engine, "connect", _opened)
        event.listen(self._engine, "checkout", self._still_there)

    def call(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of one statement. Raises our errors."""
        with translating():
            lent = self._own(self._engine).raw_connection()
            connection = cast("psycopg.Connection[Any]", lent.driver_connection)
            try:
                cursor = connection.execute(statement.encode(), parameters)
                return cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if connection.closed or error.sqlstate in READ_ONLY:
                    self._lost_at = time.monotonic()
                    lent.invalidate(error)
                raise
            finally:
                lent.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, committed at the end, rolled back if anything is raised."""
        with translating(), self._own(self._transactional).begin() as connection:
            yield connection

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The same as an ORM session, for handlers."""
        with translating(), HandlerSession(self._own(self._transactional)) as session, session.begin():
            yield session

    def close(self) -> None:
        self._engine.dispose()

    def _own(self, engine: Engine) -> Engine:
        """In a forked child the parent's connections are left to it, unclosed: two who talk on one get each other's answers."""
        if self._pid != os.getpid():
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        return engine

    def _still_there(self, connection: Any, record: Any, _lent: object) -> None:
        """Before a connection is lent: after a restart each of the pool would fail one call, and leave a job to its timer."""
        if connection.closed or record.info["opened"] <= self._lost_at or _spoken_to(connection):
            raise InvalidatePoolError  # the pool opens another, and lends none that is older


def _opened(_connection: object, record: Any) -> None:
    record.info["opened"] = time.monotonic()


def _spoken_to(connection: Any) -> bool:
    """Nothing was asked, yet there is something to read: the server has ended the session."""
    unread = select.poll()
    unread.register(connection.fileno(), select.POLLIN)
    return bool(unread.poll(0))
