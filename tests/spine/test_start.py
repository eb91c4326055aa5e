"""What a process refuses to start on, each in one line: a Redis that evicts, servers of two installations, pools too large."""

import io
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from notif.bootstrap import App, WorkerProcess
from notif.bootstrap.checks import check, until_right
from notif.bootstrap.log import make_log
from notif.errors import ConfigurationError
from tests.kit import Installation, Proc, eventually
from tests.servers import Servers, new_database

KEY = "notif:installation"
SELECT = "SELECT id::text FROM core.installation"


@contextmanager
def redis_setting(notif: Installation, **changed: str) -> Iterator[None]:
    names = {name.replace("_", "-"): value for name, value in changed.items()}
    before: dict[str, Any] = {name: notif.redis.config_get(name)[name] for name in names}
    for name, value in names.items():
        notif.redis.config_set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            notif.redis.config_set(name, value)


@pytest.fixture
def app(notif: Installation) -> Iterator[App]:
    made = notif.app_as("notif_worker")
    yield made
    made.close()


def test_an_empty_redis_is_adopted_and_so_is_one_that_was_wiped(notif: Installation, app: App) -> None:
    for _ in range(2):
        notif.redis.flushdb()
        check(app, app.maintenance)
        check(app, app.maintenance)
        assert notif.redis.get(KEY) == notif.one(SELECT).encode()


def test_a_redis_of_another_installation_is_refused_and_left_as_it_is(notif: Installation, app: App) -> None:
    other = str(uuid.uuid4())
    notif.redis.set(KEY, other)
    sentence = (
        f"NOTIF_REDIS_URL: this Redis belongs to installation {other}, the database to {notif.one(SELECT)}; set the URL of "
        "this installation's own, or, if that other one is no more, empty this Redis (FLUSHDB): then it is adopted"
    )
    with pytest.raises(ConfigurationError, match=f"^{re.escape(sentence)}$"):
        check(app, app.maintenance)
    assert notif.redis.get(KEY) == other.encode()


def test_a_database_of_another_installation_is_refused(notif: Installation, servers: Servers, app: App) -> None:
    """Redis is right, the database's URL is not: a copy of another one, or another one."""
    check(app, app.maintenance)
    with Elsewhere(notif, new_database(servers)) as elsewhere, pytest.raises(ConfigurationError, match="belongs to"):
        check(elsewhere, elsewhere.maintenance)


class Elsewhere:
    """An App of the same Redis on another database."""

    def __init__(self, notif: Installation, database: str) -> None:
        env = {
            name: value for name, value in notif.env("notif_worker").items() if name.startswith(("NOTIF_", "RESEND_"))
        }
        self.app = App.from_settings({name: value.replace(notif.database, database) for name, value in env.items()})

    def __enter__(self) -> App:
        return self.app

    def __exit__(self, *_: object) -> None:
        self.app.close()


def test_a_database_without_the_schema_is_told_what_to_do(notif: Installation, servers: Servers) -> None:
    name = f"bare_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(servers.admin_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with Elsewhere(notif, name) as bare, pytest.raises(ConfigurationError, match=r"run `notif db upgrade`$"):
        check(bare, bare.maintenance)


def limited(notif: Installation, *forbidden: str) -> str:
    """The URL of a Redis user who may not do this."""
    rights = ("reset", "on", ">pw", "~*", "&*", "+@all", *forbidden)
    notif.redis.execute_command("ACL", "SETUSER", "limited", *rights)  # type: ignore[no-untyped-call]
    parts = urlsplit(notif.servers.redis_url)
    return parts._replace(netloc=f"limited:pw@{parts.hostname}:{parts.port}").geturl()


@pytest.mark.parametrize("forbidden", [(), ("-config",), ("-info",)])
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_evicts_is_refused(notif: Installation, forbidden: tuple[str, ...], policy: str) -> None:
    app = App.from_settings(settings(notif, limited(notif, *forbidden)))
    with redis_setting(notif, maxmemory_policy=policy):
        sentence = f"NOTIF_REDIS_URL: this Redis evicts what it holds (maxmemory-policy {policy}); set it to noeviction"
        with pytest.raises(ConfigurationError, match=f"^{re.escape(sentence)}$"):
            check(app, app.maintenance)
        assert notif.redis.get(KEY) is None
    check(app, app.maintenance)
    app.close()


def test_a_redis_that_does_not_say_is_taken_with_a_warning(notif: Installation) -> None:
    out = io.StringIO()
    app = App.from_settings(settings(notif, limited(notif, "-info", "-config")), make_log(out))
    check(app, app.maintenance)
    app.close()
    assert "Redis doesn't say whether it evicts" in out.getvalue()


def settings(notif: Installation, redis_url: str) -> dict[str, str]:
    env = notif.env("notif_worker", NOTIF_REDIS_URL=redis_url)
    return {name: value for name, value in env.items() if name.startswith(("NOTIF_", "RESEND_"))}


def refusal(notif: Installation, app: App, *queues: str) -> str:
    process = WorkerProcess(app, queues)
    try:
        with pytest.raises(ConfigurationError) as refused:
            process.check(threading.Event())
    finally:
        process.broker.close()
    return str(refused.value)


def test_pools_larger_than_the_server_allows_are_refused(notif: Installation, tmp_path: Path) -> None:
    many = tmp_path / "many.yaml"
    text = notif.config.read_text().replace("threads: 8", "threads: 200")
    many.write_text(text.replace("../config/templates", str(notif.config.parent.parent / "config" / "templates")))
    env = settings(notif, notif.servers.redis_url) | {"NOTIF_CONFIG": str(many)}
    app = App.from_settings(env)
    allowed = int(notif.one("SHOW max_connections")) - int(notif.one("SHOW superuser_reserved_connections"))
    background = 3
    assert refusal(notif, app, "transactional", "marketing") == (
        f"database: this process would hold {400 + background} connections, Postgres lets notif_worker have "
        f"{allowed} (max_connections less those reserved); raise that, or lower worker.threads if this is a worker"
    )
    app.close()


@pytest.mark.parametrize(
    ("what", "setting"),
    [("ROLE notif_worker", "the role's CONNECTION LIMIT"), ("DATABASE {}", "the database's CONNECTION LIMIT")],
)
def test_a_limit_of_the_role_or_the_database_counts(notif: Installation, app: App, what: str, setting: str) -> None:
    notif.admin(f"ALTER {what.format(notif.database)} CONNECTION LIMIT 10")
    try:
        assert refusal(notif, app, "transactional").startswith(
            f"database: this process would hold 11 connections, Postgres lets notif_worker have 10 ({setting});"
        )
    finally:
        notif.admin(f"ALTER {what.format(notif.database)} CONNECTION LIMIT -1")


# ---- the processes
ROLES = {
    "worker": ("-m", "notif", "worker", "transactional"),
    "relay": ("-m", "notif", "relay"),
    "maintenance": ("-m", "notif", "maintenance"),
    "dramatiq": ("-m", "dramatiq", "workers.transactional", "--processes", "1", "--threads", "1"),
}


def ended(process: Proc) -> tuple[int, str]:
    eventually(lambda: not process.alive, what="it ends by itself")
    return process.stop(), process.log.read_text()


@pytest.mark.parametrize("role", ROLES)
def test_every_role_ends_with_one_line(notif: Installation, role: str) -> None:
    notif.redis.set(KEY, "another")
    code, said = ended(notif.process(*ROLES[role]))
    assert code == (1 if role == "dramatiq" else 2)
    told = [line for line in said.splitlines() if "this Redis belongs to installation another" in line]
    assert len(told) == 1
    assert told[0].startswith("notif: NOTIF_REDIS_URL: ")
    assert "Traceback" not in said
    if role != "dramatiq":  # whose master says that its worker has ended
        assert said.splitlines() == told


@pytest.fixture
def stalled(notif: Installation) -> Iterator[Callable[[], None]]:
    """Redis stands still; calling it lets it go on."""
    valkey = notif.servers.valkey
    if valkey is None:
        pytest.skip("needs a Redis of our own to stop")
    os.kill(valkey.pid, signal.SIGSTOP)
    yield lambda: os.kill(valkey.pid, signal.SIGCONT)
    os.kill(valkey.pid, signal.SIGCONT)


def test_a_server_that_is_away_is_waited_for(notif: Installation, stalled: Callable[[], None]) -> None:
    """An outage is no misconfiguration: what starts during one goes on by itself when it is over."""
    relay, worker = notif.process(*ROLES["relay"]), notif.process(*ROLES["worker"])
    for process in (relay, worker):
        eventually(lambda p=process: "start waits" in p.log.read_text(), within=120)  # type: ignore[misc]
    stalled()
    job = notif.send()
    notif.until(job, "delivered")
    for process in (relay, worker):
        assert process.log.read_text().count("start waits") == 1
        assert "start goes on" in process.log.read_text()


def test_a_process_that_waits_for_a_server_can_be_stopped(notif: Installation, stalled: Callable[[], None]) -> None:
    started = [notif.process(*ROLES[role]) for role in ("relay", "worker", "maintenance")]
    for process in started:
        eventually(lambda p=process: "start waits" in p.log.read_text(), within=120)  # type: ignore[misc]
    assert [process.stop() for process in started] == [0, 0, 0]


def test_waiting_ends_with_the_stop(app: App) -> None:
    stop = threading.Event()
    stop.set()
    until_right(app, app.maintenance, stop)


def test_a_relay_adopts_a_redis_that_was_wiped_under_it(notif: Installation) -> None:
    relay = notif.relay()
    notif.redis.flushdb()
    eventually(lambda: notif.redis.get(KEY) == notif.one(SELECT).encode(), what="adopted again")
    assert relay.stop() == 0


def test_a_relay_leaves_a_redis_that_became_anothers(notif: Installation) -> None:
    relay = notif.relay()
    notif.redis.set(KEY, "another")
    code, said = ended(relay)
    assert code == 2
    assert said.splitlines()[-1].startswith("notif: NOTIF_REDIS_URL: this Redis belongs to installation another")
