"""CPU time of processes and of the machine, from /proc (Linux only)."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    """Seconds of user and system time so far, by the names that were asked for; of the whole machine, busy ones and all."""

    at: float
    seconds: Mapping[str, float]
    busy: float
    all: float

    def since(self, before: "Cpu") -> "Cpu":
        spent = {name: value - before.seconds.get(name, 0.0) for name, value in self.seconds.items()}
        return Cpu(self.at - before.at, spent, self.busy - before.busy, self.all - before.all)

    @property
    def elsewhere(self) -> float:
        """Percent of the machine that something else took, between two looks."""
        return max(0.0, 100 * (self.busy - sum(self.seconds.values())) / self.all)


def look(pids: Mapping[str, int]) -> Cpu:
    """Each of these processes with all its descendants, those that have ended included; and this one, as `bench`."""
    own = os.times()
    mine = {"bench": own.user + own.system}
    return Cpu(time.monotonic(), mine | {name: _tree(pid) for name, pid in pids.items()}, *_machine())


def _tree(pid: int) -> float:
    """Ended children are in their parent's account once it has waited for them."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    if not stat:
        return 0.0
    own = sum(map(int, stat.rpartition(") ")[2].split()[11:15])) / TICK
    return own + sum(map(_tree, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []
    return [int(child) for task in tasks for child in _read(Path(f"/proc/{pid}/task/{task}/children")).split()]


def _read(path: Path) -> str:
    """Empty if the process, or the thread, has just ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _machine() -> tuple[float, float]:
    """Busy, and all; what a hypervisor took away counts as busy."""
    user, nice, system, idle, iowait, *others = (
        int(field) / TICK for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    busy = user + nice + system + sum(others)
    return busy, busy + idle + iowait
