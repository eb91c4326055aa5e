"""The one `notif up` of a data folder: its lock, and the note that lets a second shell find it."""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from notif.errors import ConfigurationError, Refused

PATIENCE = 1.0
"""Seconds a start waits for the lock: a second shell that looks for us holds it for a moment."""


@dataclass(frozen=True, slots=True)
class Running:
    """Who runs, and the variables by which others reach it: product code and operators, or one more worker."""

    pid: int
    env: dict[str, str]
    worker_env: dict[str, str]


class Claim:
    """A data folder taken for one process, until `release` or its end, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises Refused (somebody has it) or ConfigurationError (no such folder can be)."""
        self._note = folder / "run.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "a")  # noqa: SIM115 - closed by release: that is the unlocking
        except OSError as error:
            raise ConfigurationError(f"NOTIF_DATA_DIR: {folder} can't be used: {error.strerror}") from None
        end = time.monotonic() + PATIENCE
        while not _locked(self._lock, fcntl.LOCK_EX):
            if time.monotonic() > end:
                self._lock.close()
                running = _read(self._note)
                pid = f" (pid {running.pid})" if running else ""
                raise Refused(
                    f"`notif up` runs on {folder} already{pid}; stop it, or let NOTIF_DATA_DIR name another folder"
                )
            time.sleep(0.02)
        self._note.unlink(missing_ok=True)

    def announce(self, running: Running) -> None:
        """Write the note. It holds passwords: readable by its owner only, and never half written."""
        write_secret(self._note, json.dumps(asdict(running)))

    def release(self) -> None:
        """Take the note away, then the lock."""
        self._note.unlink(missing_ok=True)
        self._lock.close()


def find_running(folder: Path) -> Running | None:
    """Who runs on this folder now; None if nobody does, or isn't ready yet. What a killed one left does not count."""
    try:
        lock = open(folder / "lock")  # noqa: SIM115
    except OSError:
        return None
    with lock:
        return None if _locked(lock, fcntl.LOCK_SH) else _read(folder / "run.json")


def write_secret(path: Path, text: str) -> None:
    """Readable by its owner only; there whole, or as it was."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(fresh, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    fresh.replace(path)


def _locked(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(note: Path) -> Running | None:
    try:
        return Running(**json.loads(note.read_text()))
    except (OSError, ValueError, TypeError):
        return None
