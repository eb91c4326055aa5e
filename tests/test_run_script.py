"""`./run`: the real script in a folder of its own, beside a package that writes down how it was called."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPY = """
import json, os, sys
from pathlib import Path
Path("called.json").write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
"""
KEPT = {
    "NOTIF_TEST_DATABASE_URL": "postgresql://kept",
    "NOTIF_TEST_REDIS_URL": "redis://kept",
    "NOTIF_PG_BIN": "/kept/pg",
    "NOTIF_VALKEY_BIN": "/kept/valkey",
    "HOME": "/kept/home",
}
TRAPS = [
    "NOTIF_DATABASE_URL",
    "NOTIF_DATABASE_OWNER_URL",
    "NOTIF_DATABASE_MAINTENANCE_URL",
    "NOTIF_REDIS_URL",
    "NOTIF_LIMITS_REDIS_URL",
    "NOTIF_CONFIG",
    "NOTIF_DATA_DIR",
    "NOTIF_APP",
    "NOTIF_REDIS_URL_FILE",
    "RESEND_API_KEY",
    "RESEND_API_KEY_FILE",
    "RESEND_API_URL",
    "UPSTASH_REDIS_REST_URL",
    "UPSTASH_REDIS_REST_TOKEN",
    "BETTERSTACK_TOKEN",
    "BETTERSTACK_URL",
    "REDIS_URL",
    "DATABASE_URL",
    "PGHOST",
    "PGPASSWORD",
    "PGSERVICE",
    "HTTP_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "dramatiq_queue_prefetch",
    "PYTHONOPTIMIZE",
    "PYTHONHOME",
]
PRODUCTION = "https://production.example\nNOTIF_TEST_REDIS_URL=not a variable, the second line of one"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """As if the repository had been copied to a folder with a difficult name, and had been used there before."""
    folder = tmp_path / "a copy's folder"
    folder.mkdir()
    for name in ("run", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / ".venv" / "bin" / "python").chmod(0o755)
    shutil.copy(ROOT / "requirements.lock", folder / ".venv" / "installed.lock")
    for package in ("notif", "benchmarks", "chaos", "pytest"):  # `-m pytest` finds this one: the folder is on the path
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
        (folder / package / "__main__.py").write_text(SPY)
    return folder


def call(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """What was called: its arguments and its environment."""
    environment = {"PATH": os.environ["PATH"], "CDPATH": "/usr", "PYTHONPATH": "/nowhere", **(env or {})}
    subprocess.run([folder / "run", *arguments], env=environment, cwd="/", check=True)
    called = json.loads((folder / "called.json").read_text())
    return called["argv"], called["env"]


@pytest.mark.parametrize("command", ["demo", "test", "chaos"])
def test_what_runs_on_its_own_servers_sees_nothing_that_leads_to_a_real_service(copy: Path, command: str) -> None:
    _, env = call(copy, command, env=KEPT | dict.fromkeys(TRAPS, PRODUCTION))
    assert [name for name in TRAPS if name in env] == []
    assert [name for name, value in env.items() if PRODUCTION in value] == []
    assert {name: env.get(name) for name in KEPT} == KEPT
    assert env["PYTHONPATH"] == str(copy)


def test_the_other_commands_see_the_environment_as_it_is(copy: Path) -> None:
    for command in ("up", "notif", "bench"):
        _, env = call(copy, command, env={"NOTIF_REDIS_URL": PRODUCTION})
        assert env["NOTIF_REDIS_URL"] == PRODUCTION
        assert env["PYTHONPATH"] == str(copy)


def test_arguments_arrive_as_they_are(copy: Path) -> None:
    given = ["--data", '{"a": "b  c"}', "*", ""]
    for command, called in {
        "demo": ["demo", *given],
        "up": ["up", *given],
        "notif": given,
        "test": ["-n", "2", "--dist", "worksteal", *given],
        "bench": given,
        "chaos": given,
    }.items():
        assert call(copy, command, *given)[0] == called
    assert call(copy, "python", "-c", SPY, *given)[0] == given


def test_a_wrong_command_is_wrong_usage(copy: Path) -> None:
    for arguments in ([], ["dmeo"]):
        done = subprocess.run([copy / "run", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ./run COMMAND")


def test_without_a_fitting_python_it_says_what_to_install(copy: Path) -> None:
    shutil.rmtree(copy / ".venv")
    done = subprocess.run(
        [copy / "run", "demo"],
        env={"PATH": os.environ["PATH"], "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "run: /bin/false is not a Python >= 3.11 with venv (on Debian: apt-get install python3-venv)."
    )
    assert not (copy / ".venv").exists()


def test_two_at_once_install_once_and_again_only_when_the_lock_changed(copy: Path) -> None:
    """With an empty list of packages, so that no registry is asked."""
    (copy / "requirements.lock").write_text("# none\n")
    python = copy / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")  # whose Python has been removed, or belongs to the one it was copied from
    command = [str(copy / "run"), "python", "-c", "import sys; print(sys.prefix)"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [out for out, _ in said] == [f"{copy}/.venv\n"] * 2
    assert sum(err.count("making .venv") for _, err in said) == 1
    assert sum(err.count("run: ready.") for _, err in said) == 1

    (copy / "requirements.lock").write_text("# none any more\n")
    third, fourth = (subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(2))
    assert "installing 0 pinned packages" in third
    assert "making .venv" not in third
    assert fourth == ""
