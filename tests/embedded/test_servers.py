"""Which servers the tests themselves run on: embedded ones, or those of NOTIF_TEST_*, and then on loopback only."""

from pathlib import Path

import psycopg
import pytest
import redis

from notif.errors import ConfigurationError
from tests import servers as real

PASSWORD = "s3cr3t-hunter2"


@pytest.mark.parametrize("name", ["NOTIF_TEST_DATABASE_URL", "NOTIF_TEST_REDIS_URL"])
@pytest.mark.parametrize(
    "where",
    [
        "db.example.test:5432/notif",
        "10.0.0.7/0",
        "127.0.0.1.example.test/0",
        "127.0.0.1,db.example.test/notif",
        "/notif",
        "127.0.0.1/notif?host=db.example.test",
        "127.0.0.1/notif?hostaddr=10.0.0.7",
        "localhost/notif?service=production",
    ],
)
def test_a_server_elsewhere_is_refused_before_anything_starts(name: str, where: str) -> None:
    scheme = "redis" if "REDIS" in name else "postgresql"
    environ = {name: f"{scheme}://u:{PASSWORD}@{where}", "NOTIF_PG_BIN": "/no/such", "NOTIF_VALKEY_BIN": "/no/such"}
    sentence = f"^{name}: .*its host must be 127.0.0.1, localhost, ::1"
    with pytest.raises(ValueError, match=sentence) as refused, real.running(environ):
        pass
    assert PASSWORD not in str(refused.value)


def test_servers_on_loopback_are_used_and_left_running(servers: real.Servers) -> None:
    given = {"NOTIF_TEST_DATABASE_URL": servers.admin_url, "NOTIF_TEST_REDIS_URL": servers.redis_url}
    nothing = {"NOTIF_PG_BIN": "/no/such", "NOTIF_VALKEY_BIN": "/no/such"}  # asked for by nobody
    with real.running({**given, **nothing}) as found:
        assert (found.admin_url, found.redis_url, found.valkey) == (servers.admin_url, servers.redis_url, None)
    psycopg.connect(servers.admin_url).close()
    with redis.Redis.from_url(servers.redis_url) as client:
        assert client.ping()


def test_what_is_set_but_empty_is_not_set() -> None:
    empty = ("NOTIF_TEST_DATABASE_URL", "NOTIF_TEST_REDIS_URL", "NOTIF_PG_BIN", "NOTIF_VALKEY_BIN")
    with real.running(dict.fromkeys(empty, "")) as found:
        assert found.valkey
        psycopg.connect(found.admin_url).close()


@pytest.mark.parametrize("name", ["NOTIF_PG_BIN", "NOTIF_VALKEY_BIN"])
def test_binaries_that_are_named_are_those_that_run(name: str, servers: real.Servers, tmp_path: Path) -> None:
    other = {
        "NOTIF_PG_BIN": {"NOTIF_TEST_REDIS_URL": servers.redis_url},
        "NOTIF_VALKEY_BIN": {"NOTIF_TEST_DATABASE_URL": servers.admin_url},
    }[name]
    with pytest.raises(ConfigurationError, match=f"^{name}: no "), real.running({**other, name: str(tmp_path)}):
        pass
