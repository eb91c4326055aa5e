"""`python -m benchmarks [--json] [--quick] [--only OUTAGE] [--minutes M] [NAME ...]`."""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

from benchmarks import endurance, idle, latency, outages, pick, publishing, roundtrips, throughput
from benchmarks.outage_cases import CASES
from benchmarks.report import QUICK, Size, Step, Table, machine_facts, print_json, print_tables, progress
from benchmarks.rig import Rig
from notif.cli.environment import forget_libpq
from notif.errors import NotifError, nearest

Benchmark = tuple[Callable[[Size], int], Callable[[Rig, Size, Step], list[Table]]]
ALL: Mapping[str, Benchmark] = MappingProxyType(
    {
        "idle": (idle.steps, idle.idle),
        "latency": (latency.steps, latency.latency),
        "roundtrips": (roundtrips.steps, roundtrips.roundtrips),
        "throughput": (throughput.steps, throughput.throughput),
        "publishing": (publishing.steps, publishing.publishing),
        "pick": (pick.steps, pick.pick),
    }
)
LONG: Mapping[str, Benchmark] = MappingProxyType(
    {"outages": (outages.steps, outages.outages), "endurance": (endurance.steps, endurance.endurance)}
)
"""Run only when they are asked for."""
MOST_MINUTES = 600
EVERY: Mapping[str, Benchmark] = MappingProxyType({**ALL, **LONG})


def main() -> None:
    names, as_json, size = arguments(sys.argv[1:])
    forget_libpq()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        facts, found = measure(names, size)
    except NotifError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; nothing is left behind")
    (print_json if as_json else print_tables)(facts, found)


def arguments(given: Sequence[str]) -> tuple[list[str], bool, Size]:
    """Which benchmarks, whether JSON is asked for, and how much of everything. Exits with code 2 on what makes no sense."""
    parser = argparse.ArgumentParser(prog="./run bench", description="Measure notif on this machine.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(ALL)}: all of these without a name; {', '.join(LONG)}"
    )
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of everything: shows that it runs, its figures mean nothing"
    )
    parser.add_argument(
        "--only", action="append", metavar="OUTAGE", help="of the outages this one, the long ones too; may be repeated"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="of endurance's load (10)")
    asked = parser.parse_intermixed_args(given)
    for name in asked.names:
        if name not in EVERY:
            parser.error(f"NAME: there is no benchmark {name!r}; {nearest(name, EVERY)}")
    for name in asked.only or ():
        if name not in CASES:
            parser.error(f"--only: there is no outage {name!r}; {nearest(name, CASES)}")
    for option, value, reader in (("--only", asked.only, "outages"), ("--minutes", asked.minutes, "endurance")):
        if value is not None and reader not in asked.names:
            parser.error(f"{option}: is for {reader}, which is not asked for")
    if asked.minutes is not None and not 0.5 <= asked.minutes <= MOST_MINUTES:
        parser.error(f"--minutes: {asked.minutes:g} is not between 0.5 and {MOST_MINUTES}")
    size = QUICK if asked.quick else Size()
    size = replace(size, only=asked.only or size.only, minutes=asked.minutes or size.minutes)
    return asked.names or list(ALL), asked.json, size


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def measure(names: list[str], size: Size) -> tuple[dict[str, object], dict[str, list[Table]]]:
    """One installation for all of them, thrown away afterwards. Raises NotifError."""
    facts = machine_facts()
    with Rig() as rig:
        facts |= rig.facts()
        found = {}
        for name in names:
            steps, benchmark = EVERY[name]
            with progress(name, steps(size)) as step:
                found[name] = benchmark(rig, size, step)
    return facts, found


if __name__ == "__main__":
    main()
