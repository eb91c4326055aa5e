"""For tests that start and kill processes: wait for what happens, with a deadline."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")

DEADLINE = 30.0


def until(what: str, look: Callable[[], _T]) -> _T:
    """The first answer of `look` that is true; fails with `what` after DEADLINE seconds."""
    end = time.monotonic() + DEADLINE
    while not (found := look()):
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    """Whether it runs; a dead one that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # ended between the two, or a system without /proc
        return not Path("/proc/self").exists()


def kill_and_reap(process: "subprocess.Popen[str]") -> None:
    """`kill -9`, as the out-of-memory killer would."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
