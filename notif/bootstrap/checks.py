"""What must be so before a process starts: both servers are this installation's, and fit it. Each refusal is one line."""

import threading
from contextlib import closing
from uuid import UUID

from notif.adapters.postgres.database import Database
from notif.adapters.postgres.installation import PostgresInstallation
from notif.adapters.redis_carrier import RedisHome
from notif.bootstrap.app import App
from notif.errors import ConfigurationError, Unavailable
from notif.ports import Log

AWAY_WAIT = 0.5
"""Seconds between two tries while Postgres or Redis does not answer."""


def until_right(app: App, database: Database, stop: threading.Event) -> None:
    """Return when everything is right, or `stop` is set: what doesn't answer is waited for. Raises ConfigurationError."""
    waiting = False
    while not stop.is_set():
        try:
            check(app, database)
        except Unavailable as error:
            if not waiting:
                app.log.warning("start waits", error=str(error))
            waiting = True
            stop.wait(AWAY_WAIT)
        else:
            if waiting:
                app.log.info("start goes on")
            return


def check(app: App, database: Database) -> None:
    """Once, after the process' pools were made. Raises ConfigurationError, Unavailable."""
    postgres = PostgresInstallation(database)
    ours = postgres.id()
    _check_pools(app, database, postgres)
    if app.settings.redis_url is not None:  # maintenance can do without
        with closing(RedisHome(app.redis_url)) as redis:
            _check_eviction(redis, app.log)
            _check_owner(redis, ours)


def _check_eviction(redis: RedisHome, log: Log) -> None:
    policy = redis.eviction()
    if policy not in ("", "noeviction"):
        raise ConfigurationError(
            f"NOTIF_REDIS_URL: this Redis evicts what it holds (maxmemory-policy {policy}); set it to noeviction"
        )
    if not policy:
        log.warning("Redis doesn't say whether it evicts: neither INFO nor CONFIG may be asked")


def _check_owner(redis: RedisHome, ours: UUID) -> None:
    """An empty one becomes ours."""
    theirs = redis.adopt(ours)
    if theirs != str(ours):
        raise ConfigurationError(
            f"NOTIF_REDIS_URL: this Redis belongs to installation {theirs}, the database to {ours}; set the URL of this "
            f"installation's own, or, if that other one is no more, empty this Redis (FLUSHDB): then it is adopted"
        )


class Home:
    """Whether Redis stays ours while a process runs: it may be wiped, and a URL may lead elsewhere one day."""

    def __init__(self, app: App, stop: threading.Event) -> None:
        self._app, self._stop = app, stop
        self._ours: UUID | None = None
        self.lost: ConfigurationError | None = None

    def look(self) -> None:
        """If it is another's now, `lost` says so and `stop` is set. Raises Unavailable."""
        self._ours = self._ours or PostgresInstallation(self._app.maintenance).id()
        try:
            with closing(RedisHome(self._app.redis_url)) as redis:
                _check_owner(redis, self._ours)
        except ConfigurationError as error:
            self.lost = error
            self._stop.set()


def _check_pools(app: App, database: Database, postgres: PostgresInstallation) -> None:
    wanted, allowed = app.connections(database), postgres.allowed()
    if wanted > allowed.connections:
        raise ConfigurationError(
            f"database: this process would hold {wanted} connections, Postgres lets {allowed.role} have "
            f"{allowed.connections} ({allowed.setting}); raise that, or lower worker.threads if this is a worker"
        )
