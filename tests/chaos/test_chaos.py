"""The harness as it is called: a whole system, a few faults, and nothing found; nothing is left behind either."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.kit import ROOT, eventually

SEED = 1


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["./run", "chaos", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_by(folder: Path) -> list[str]:
    """Processes that speak of the folder, and what is in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in seen and int(entry.name) != os.getpid():
            found.append(seen.decode(errors="replace")[:200])
    return [*found, *(str(path) for path in folder.iterdir())]


def test_a_short_seed_finds_nothing(tmp_path: Path) -> None:
    run = start(tmp_path, "--seed", str(SEED), "--minutes", "0.1", "--json")
    said, progress = run.communicate(timeout=280)
    assert run.returncode == 0, progress
    (result,) = json.loads(said)
    figures = result["figures"]
    assert figures["seed"] == SEED
    assert sum(result["faults"].values()) >= 2
    assert figures["delivered"] > 20
    assert figures["delivered"] + figures["dead"] + figures["cancelled"] == figures["rows"]
    assert [figures[what] for what in ("lost", "doubled", "stuck", "wrong", "late")] == [0] * 5
    assert "of 6 s" in progress
    assert left_by(tmp_path) == []


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    run = start(tmp_path, "--minutes", "1")
    eventually(lambda: list(tmp_path.glob("notif-chaos-*/logs/postgres.log")), within=60)
    time.sleep(0.2)  # anywhere on its way
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "chaos: interrupted; nothing is left behind" in said
    assert left_by(tmp_path) == []


def test_wrong_usage_names_the_option(tmp_path: Path) -> None:
    run = start(tmp_path, "--minutes", "0")
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said.splitlines()[-1]) == (
        2,
        "./run chaos: error: --minutes: must be from 0.05 to 120, not 0",
    )
