"""What the roles hold of the machine, and what is held for them on the servers."""

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.rig import Rig

Held = Mapping[str, Mapping[str, float]]
"""Who → what → how much of it."""


def family(pid: int) -> list[int]:
    """A process and its descendants, parents first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def by_roles(rig: Rig) -> Held:
    """Threads, descriptors and resident MB of each role's process, and of the sandbox."""
    return {name: _of(family(pid)[-1]) for name, pid in rig.machine.pids.items()}


def by_servers(rig: Rig) -> Held:
    """Sessions of notif's roles at Postgres, keys and clients on Redis."""
    sessions = rig.watch("SELECT count(*) FROM pg_stat_activity WHERE usename ~ '^notif_'")[0][0]
    keys, clients = int(rig.redis.dbsize()), int(rig.redis.info("clients")["connected_clients"])
    return {"Postgres": {"sessions": sessions}, "Redis": {"keys": keys, "clients": clients}}


def _of(pid: int) -> Mapping[str, float]:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "MB": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
    }
