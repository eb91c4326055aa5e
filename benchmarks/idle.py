"""What an installation costs that has nothing to do."""

import time
from collections.abc import Mapping

from benchmarks import cpu
from benchmarks.report import Size, Step, Table
from benchmarks.rig import MARKETING, WORKER, Rig

ROLES = ("relay", WORKER, MARKETING, "maintenance")
SETTLING = 3.0
"""Seconds after the start that are not measured."""


def steps(size: Size) -> int:
    del size
    return 2


def idle(rig: Rig, size: Size, step: Step) -> list[Table]:
    step("starting every role")
    rig.empty()
    rig.start(*ROLES)
    time.sleep(SETTLING)
    step(f"idle for {size.idle_seconds:g} s")
    commands, commits, before = _commands(rig), _commits(rig), cpu.look(rig.pids)
    time.sleep(size.idle_seconds)
    spent = cpu.look(rig.pids).since(before)
    commits, commands = _commits(rig) - commits, _grown(_commands(rig), commands)
    rig.stop(*ROLES)
    return [_cpu(spent), _postgres(commits, spent.at), _redis(commands, spent.at)]


def _cpu(spent: cpu.Cpu) -> Table:
    percent = {name: round(100 * seconds / spent.at, 2) for name, seconds in spent.seconds.items() if name != "bench"}
    rows = [{"process": name, "% of a core": value} for name, value in percent.items()]
    rows.append({"process": "all", "% of a core": round(sum(percent.values()), 2)})
    return Table(
        "Idle: CPU", rows, [f"over {spent.at:.0f} s; other programs took {spent.elsewhere:.0f} % of the machine"]
    )


def _postgres(commits: int, seconds: float) -> Table:
    rows = [{"": "transactions/s, reads included", "per s": round(commits / seconds, 1)}]
    return Table(
        "Idle: Postgres",
        rows,
        [
            "a relay's loops, one per lane and one for queues without a lane, poll up to 40 times a second; looking is not counted"
        ],
    )


def _redis(commands: Mapping[str, int], seconds: float) -> Table:
    rows = [
        {"command": name, "per s": round(count / seconds, 2)}
        for name, count in sorted(commands.items(), key=lambda x: -x[1])
    ]
    rows.append({"command": "all", "per s": round(sum(commands.values()) / seconds, 2)})
    return Table("Idle: Redis", rows, ["as INFO commandstats counts: a script and each command in it"])


def _commands(rig: Rig) -> dict[str, int]:
    stats: Mapping[str, Mapping[str, int]] = rig.redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def _grown(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in grown.items() if count > 0 and name != "info"}


def _commits(rig: Rig) -> int:
    return int(rig.watch("SELECT xact_commit FROM pg_stat_database WHERE datname = 'notif'")[0][0])
