"""Which installation a command speaks to: the environment's, else the `notif up` that runs in this folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from notif.bootstrap.app import App
from notif.bootstrap.running import find_running
from notif.settings import Settings

ADDRESSES = ("NOTIF_DATABASE_URL", "NOTIF_DATABASE_MAINTENANCE_URL", "NOTIF_DATABASE_OWNER_URL", "NOTIF_REDIS_URL")
"""If one of them is set, the environment says it all."""


def environment(*, worker: bool = False) -> dict[str, str]:
    """The variables that hold for this command. `worker`: with the worker role's database URL."""
    given = dict(os.environ)
    if any(given.get(name) or given.get(f"{name}_FILE") for name in ADDRESSES):
        return given
    running = find_running(Settings.from_environment(given).data_dir)
    if running is None:
        return given
    forget_libpq()
    found = running.worker_env if worker else running.env
    chosen = {name: given[name] for name in ("NOTIF_CONFIG", "NOTIF_APP", "NOTIF_DATA_DIR") if given.get(name)}
    return {**os.environ, **found, **chosen}


@contextmanager
def opened(*, worker: bool = False) -> Iterator[App]:
    """The App of this command's installation, closed at the end. Raises ConfigurationError."""
    app = App.from_settings(environment(worker=worker))
    try:
        yield app
    finally:
        app.close()


def forget_libpq() -> None:
    """Embedded servers are reached by their URL alone: PGHOSTADDR, PGSSLMODE and the like are meant for others."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
