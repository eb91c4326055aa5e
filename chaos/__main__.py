"""`python -m chaos [--seeds N] [--minutes M] [--seed S] [--json]`."""

import argparse
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import psycopg
import redis

from chaos.catalogue import CATALOGUE
from chaos.clocks import no_clocks
from chaos.disks import own_mounts
from chaos.report import again, print_failure, print_json, print_table, progress, story, told
from chaos.trial import Result, Trial
from notif.errors import NotifError

SEEDS, MINUTES = 2, 1.0


def main() -> None:
    """Exit code 0: nothing found. 1: something was, or it could not go on. 2: wrong usage."""
    given = _arguments()
    first = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    count = given.seeds or (SEEDS if given.seed is None else 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    results: list[Result] = []
    lacking = _lacking()
    try:
        for seed in range(first, first + count):
            with progress() as say:
                trial = Trial(seed, given.minutes, partial(say, f"seed {seed}"), lacking, given.logs)
                results.append(trial.run())
            sys.stderr.write(f"{told(results[-1])}\n")
            if not results[-1].passed:
                print_failure(results[-1])
    except (NotifError, OSError, psycopg.Error, redis.RedisError) as error:
        said = f"chaos: it could not be run to its end: {type(error).__name__}: {error}"
        sys.exit("\n".join([again(seed, given.minutes), said, *story(trial.timeline)]))
    except KeyboardInterrupt:
        sys.exit("chaos: interrupted; nothing is left behind")
    (print_json if given.json else print_table)(results)
    sys.exit(0 if all(result.passed for result in results) else 1)


def _lacking() -> dict[str, str]:
    """What this machine doesn't give; said once, the faults that need it are left out."""
    reasons = {"disks": own_mounts(), "clocks": no_clocks()}
    lacking = {what: reason for what, reason in reasons.items() if reason}
    for what, reason in lacking.items():
        left_out = ", ".join(name for name, fault in CATALOGUE.items() if fault.needs == what)
        sys.stderr.write(f"chaos: {reason}; left out: {left_out}\n")
    return lacking


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run chaos", description="Harm a whole system of our own, and add the books."
    )
    parser.add_argument("--seeds", type=int, metavar="N", help=f"how many runs; {SEEDS}, or 1 with --seed")
    parser.add_argument("--minutes", type=float, metavar="M", default=MINUTES, help="of faults, per seed; 1")
    parser.add_argument("--seed", type=int, metavar="S", help="the first seed: the same faults again")
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep every process' log there")
    given = parser.parse_args()
    if given.seeds is not None and given.seeds < 1:
        parser.error(f"--seeds: must be at least 1, not {given.seeds}")
    if not 0.05 <= given.minutes <= 120:
        parser.error(f"--minutes: must be from 0.05 to 120, not {given.minutes:g}")
    return given


def _interrupt(*_: object) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):  # once is enough: what is left must be able to end in order
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
