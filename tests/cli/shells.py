"""A `notif up` of the tests, and shells beside it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from notif.bootstrap.running import Running, find_running
from tests.kit import ROOT, eventually

NOTIF = (sys.executable, "-m", "notif")


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Shell = Callable[..., Done]


def bare(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a shell in which nothing is set but the data folder."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    config = {"NOTIF_CONFIG": str(ROOT / "tests" / "config.yaml"), "NOTIF_APP": "tests.product:register"}
    return {**kept, **config, "PYTHONPATH": str(ROOT), "NOTIF_DATA_DIR": str(folder), **more}


def command(*arguments: str, env: Mapping[str, str], stdin: str = "") -> Done:
    """A real process without a terminal."""
    done = subprocess.run(
        [*NOTIF, *arguments],
        env=dict(env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Up:
    """One `notif up`, ready."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.out, self.err = folder.with_suffix(".out"), folder.with_suffix(".err")
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen([*NOTIF, "up"], env=dict(env), stdout=out, stderr=err, cwd=ROOT)
        try:
            eventually(self._ready, within=150, what="notif up is ready")
        except BaseException:
            self.stop()
            raise

    @property
    def running(self) -> Running:
        found = find_running(self.folder)
        assert found, self.err.read_text()
        return found

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.err.read_text()
        return find_running(self.folder) is not None and "stop with Ctrl-C" in self.out.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
