"""Wall clocks that jump: libfaketime, read anew at every look at the clock. Monotonic clocks go on, as they do in the world."""

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

PLACES = (
    "/usr/lib/*/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
)
FAKED = Path(__file__).parent / "faked"
"""First on a Python process' path: what the library breaks there is mended."""
SHARED = Path("/dev/shm")  # noqa: S108 - where the library puts it


def library() -> Path | None:
    """libfaketime, where the system has it."""
    return next((found for place in PLACES for found in sorted(Path("/").glob(place[1:]))), None)


def no_clocks() -> str:
    """Why no clock can jump; empty if they can."""
    return "" if library() else "no libfaketime (Debian: apt-get install libfaketime)"


class Clock:
    """One or many processes' clock. `file`: how far off it is; `seen_as`: its name for a process with another working folder."""

    def __init__(self, file: Path, seen_as: str = "") -> None:
        self._file, self._seen_as = file, seen_as or str(file)
        self.off_by(0.0)

    def off_by(self, seconds: float) -> None:
        """Written in place, always as long: it takes no room, which on a full disk there isn't, and is never seen half."""
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(f"{seconds:+09.1f}\n".encode())

    def command(self) -> tuple[str, ...]:
        """What a command line begins with to run by this clock."""
        found, env = library(), shutil.which("env")
        if not found or not env:
            return ()
        made = {
            "LD_PRELOAD": found,
            "FAKETIME_TIMESTAMP_FILE": self._seen_as,
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        return (env, *(f"{name}={value}" for name, value in made.items()))


def tidy(pids: Iterable[int]) -> None:
    """The library leaves a semaphore and a page behind for every process that was killed."""
    for pid in pids:
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            with contextlib.suppress(OSError):
                (SHARED / name).unlink()
