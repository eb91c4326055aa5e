"""What an outage costs: a steady trickle of jobs, something taken away for a while, and how long it takes when it is back."""

import time
from collections.abc import Mapping

from benchmarks.held import Held, by_roles, by_servers
from benchmarks.load import Arrivals, Load
from benchmarks.outage_cases import CASES, ROLES, Case
from benchmarks.report import Size, Step, Table
from benchmarks.rig import PATIENCE, QUEUE, Rig, until

SPACING = 0.1
"""Seconds between two jobs: ten a second, a tenth of what one worker does."""
SETTLED = 3.0
"""Seconds of good weather before each outage."""
SLOWEST = 20.0
"""Jobs a second: a backlog that is worked off slower than this is given up."""


def steps(size: Size) -> int:
    return len(_chosen(size)) + 1


def outages(rig: Rig, size: Size, step: Step) -> list[Table]:
    step("starting every role, two workers")
    rig.empty()
    rig.start(*ROLES)
    load, arrivals = Load(rig, ["email.message"], SPACING), Arrivals(rig)
    with load.running():
        until(lambda: len(arrivals.look()) > SETTLED / SPACING, "the first jobs arrive")
        before = _held(rig)
        rows = []
        for name, case in _chosen(size).items():
            step(f"{name}, {case.seconds:g} s")
            rows.append(_measured(rig, load, arrivals, name, case))
        known = len(load.taken)
        until(lambda: len(arrivals.look()) > known + 2 * SETTLED / SPACING, "every role works again", every=0.2)
        after = _held(rig)
    until(lambda: rig.waiting() == 0, "everything is delivered")
    rig.stop(*ROLES)
    notes = [
        f"one job every {SPACING:g} s, two workers; seconds from the end of the outage until the first job arrives, and until",
        "the last of those published before its end; a dash: nothing was waiting; log lines of relay and workers",
    ]
    return [Table("Outages", rows, notes), Table("What the roles hold", _compared(before, after), [])]


def _chosen(size: Size) -> Mapping[str, Case]:
    """Those that are named, else the standard ones; quick: the short ones of these."""
    if size.only:
        return {name: CASES[name] for name in size.only}
    return {name: case for name, case in CASES.items() if case.standard and (size.rounds > 1 or case.seconds <= 10)}


def _measured(rig: Rig, load: Load, arrivals: Arrivals, name: str, case: Case) -> dict[str, object]:
    time.sleep(SETTLED)
    lines, refused, known, dead = _log_lines(rig), load.refused, len(load.taken), _dead(rig)
    case.outage(rig, case.seconds)
    rig.reconnect()
    ended, due = time.time(), set(load.taken)
    until(
        lambda: due <= arrivals.look().keys() and max(arrivals.at.values()) > ended,
        f"{name}: all that was published before its end arrives, and something after it",
        every=0.2,
        patience=PATIENCE + (len(due) - known) / SLOWEST,
    )
    late = [arrivals.at[job] - ended for job in due if arrivals.at[job] > ended]
    first = min(at for at in arrivals.at.values() if at > ended) - ended
    return {
        "outage": name,
        "s": case.seconds,
        "jobs": len(load.taken) - known,
        "first after s": round(first, 1),
        "last after s": round(max(late), 1) if late else None,
        "publishes refused": load.refused - refused,
        "dead letters": _dead(rig) - dead,
        "doubled so far": arrivals.doubled,
        "log lines": _log_lines(rig) - lines,
    }


def _dead(rig: Rig) -> int:
    return int(rig.rows("SELECT count(*) FROM core.dead_letters")[0][0])


def _log_lines(rig: Rig) -> int:
    logs = rig.machine.data_dir / "logs"
    return sum(
        len(path.read_bytes().splitlines()) for path in logs.glob("*.log") if QUEUE in path.name or "relay" in path.name
    )


def _held(rig: Rig) -> Held:
    return {**by_roles(rig), **by_servers(rig)}


def _compared(before: Held, after: Held) -> list[dict[str, object]]:
    return [
        {"who": who, "what": what, "before": before.get(who, {}).get(what), "after": value}
        for who, parts in after.items()
        for what, value in parts.items()
    ]
