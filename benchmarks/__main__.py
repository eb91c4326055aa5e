"""`python -m benchmarks [--json] [--quick] [NAME ...]`."""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

from benchmarks import idle, latency, outages, pick, publishing, roundtrips, throughput
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
LONG: Mapping[str, Benchmark] = MappingProxyType({"outages": (outages.steps, outages.outages)})
"""Run only when they are asked for."""
EVERY: Mapping[str, Benchmark] = MappingProxyType({**ALL, **LONG})


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench", description="Measure notif on this machine.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(ALL)}: all of these without a name; {', '.join(LONG)}"
    )
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of everything: shows that it runs, its figures mean nothing"
    )
    given = parser.parse_args()
    for name in given.names:
        if name not in EVERY:
            parser.error(f"NAME: there is no benchmark {name!r}; {nearest(name, EVERY)}")
    forget_libpq()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        facts, found = measure(given.names or list(ALL), QUICK if given.quick else Size())
    except NotifError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; nothing is left behind")
    (print_json if given.json else print_tables)(facts, found)


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
