"""The ways in which something is taken away for a while, and put back."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from benchmarks.held import family
from benchmarks.rig import WORKER, Rig
from notif.errors import ConfigurationError, Unavailable

Outage = Callable[[Rig, float], None]
"""Takes something away for so many seconds, and returns when it is back."""
ROLES = (WORKER, f"{WORKER}#2", "relay", "maintenance")
PROVIDER_DOWN = {"fault": "error", "status": 500, "name": "internal_server_error", "path": "/emails", "times": None}
FULL = 2 * 2**30
"""Bytes: nobody's own disk is that small, so no larger one is filled."""


@dataclass(frozen=True)
class Case:
    outage: Outage
    seconds: float
    standard: bool = True
    """False: run only by its name."""


def down(*names: str) -> Outage:
    """These servers stop, and start again with their data."""

    def stop_and_start(rig: Rig, seconds: float) -> None:
        servers = [getattr(rig.machine.servers, name) for name in names]
        for server in servers:
            server.stop()
        time.sleep(seconds)
        for server in servers:
            server.start()

    return stop_and_start


def failed_over(rig: Rig, seconds: float) -> None:
    """Every session is ended at once, the primary dies without a checkpoint, and another comes up from its log."""
    server = rig.machine.servers.postgres
    assert server
    with suppress(Unavailable):
        rig.watch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    os.kill(server.pid, signal.SIGQUIT)
    server.stop()
    time.sleep(seconds)
    server.start()


def redis_wiped(rig: Rig, seconds: float) -> None:
    rig.redis.flushall()
    time.sleep(seconds)


def redis_full(rig: Rig, seconds: float) -> None:
    """`noeviction`, as notif demands it: every command that would need memory is refused."""
    rig.redis.config_set("maxmemory", "1")
    time.sleep(seconds)
    rig.redis.config_set("maxmemory", "0")


def stalled(*names: str) -> Outage:
    """SIGSTOP to all of them and their children, and SIGCONT."""

    def stall(rig: Rig, seconds: float) -> None:
        pids = [pid for name in names for pid in family(rig.pids[name])]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    return stall


def killed(*names: str) -> Outage:
    def kill(rig: Rig, seconds: float) -> None:
        for name in names:
            rig.machine.kill(name)
        time.sleep(seconds)

    return kill


def provider_down(rig: Rig, seconds: float) -> None:
    rig.sandbox.faults([PROVIDER_DOWN])
    time.sleep(seconds)
    rig.sandbox.faults([])


def disk_full(rig: Rig, seconds: float) -> None:
    """No byte is left for the servers and the logs; a server that ends of it starts again once there is room.

    Raises ConfigurationError: $TMPDIR is no small filesystem of its own.
    """
    total = shutil.disk_usage(rig.machine.data_dir).total
    if total > FULL:
        raise ConfigurationError(
            f"disk full: TMPDIR must be a filesystem of its own of {FULL >> 30} GB at most, such as a tmpfs; "
            f"this one has {total / 2**30:.0f} GB"
        )
    ballast = rig.machine.data_dir / "ballast"
    end = time.monotonic() + seconds
    with ballast.open("wb", buffering=0) as file:
        while time.monotonic() < end:
            with suppress(OSError):  # full; what is freed meanwhile is taken too
                while file.write(bytes(2**16)):
                    pass
            time.sleep(0.05)
    ballast.unlink()
    for server in (rig.machine.servers.postgres, rig.machine.servers.valkey):
        assert server
        server.start()


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "Redis down": Case(down("valkey"), 10),
        "Redis down, a minute": Case(down("valkey"), 60),
        "Redis down, ten minutes": Case(down("valkey"), 600, standard=False),
        "Redis wiped": Case(redis_wiped, 0),
        "Redis stalled": Case(stalled("valkey"), 40),
        "Redis full": Case(redis_full, 10),
        "Postgres restarted": Case(down("postgres"), 0),
        "Postgres fails over": Case(failed_over, 5),
        "Postgres down": Case(down("postgres"), 10),
        "Postgres stalled": Case(stalled("postgres"), 40),
        "both down": Case(down("postgres", "valkey"), 10),
        "disk full": Case(disk_full, 20, standard=False),
        "provider fails": Case(provider_down, 30),
        "provider fails, an hour": Case(provider_down, 3600, standard=False),
        "a worker killed": Case(killed(WORKER), 0),
        "relay killed": Case(killed("relay"), 0),
        "all roles killed": Case(killed(*ROLES), 0),
        "a worker's host frozen": Case(stalled(WORKER), 90),
    }
)
