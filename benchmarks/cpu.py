"""CPU time of processes and of the machine, from /proc (Linux only)."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    """Seconds of user and system time so far, by the names that were asked for; `busy` is the whole machine's."""

    at: float
    seconds: Mapping[str, float]
    busy: float

    def since(self, before: "Cpu") -> "Cpu":
        spent = {name: value - before.seconds.get(name, 0.0) for name, value in self.seconds.items()}
        return Cpu(self.at - before.at, spent, self.busy - before.busy)

    @property
    def elsewhere(self) -> float:
        """Percent of the machine that something else took, between two looks."""
        mine = sum(self.seconds.values())
        return max(0.0, 100 * (self.busy - mine) / (self.at * (os.cpu_count() or 1)))


def look(pids: Mapping[str, int]) -> Cpu:
    """Each of these processes with all its descendants, those that have ended included; and this one, as `bench`."""
    own = os.times()
    mine = {"bench": own.user + own.system}
    return Cpu(time.monotonic(), mine | {name: _tree(pid) for name, pid in pids.items()}, _busy())


def _tree(pid: int) -> float:
    """Ended children are in their parent's account once it has waited for them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICK + sum(_tree(int(child)) for child in children)


def _busy() -> float:
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / TICK
