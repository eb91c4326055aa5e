"""The schedules of `model.py`, played on the real tables: every statement is the real function, every message is on a real Redis.

    python -m tests.protocol.real --runs 2000                   per provider kind; exit 1 on a violation
    python -m tests.protocol.real --mutate NAME,… | all         break a rule (`mutations.py`), and expect it to be caught
    python -m tests.protocol.real --provider keyed --runs 1 --seed 41

A worker is the real consumer, a relay the real relay, each on a thread that stops at every call to Postgres or Redis, so that
anything may happen between two of them. Postgres' clock is the schedule's. What the model has and this issue lacks: chunks are
left out; a pause of a lane is a halt of the provider or of one sender's domain, a resume is `core.resume`; `suppress` is
`delivery.only` that no longer covers a job's recipient; a permit's wait is a stop of any length before the permit. Jobs belong
to two tenants, so the window's halves are felt. The fault `suspend` is left out: the lease clock runs while a host sleeps.

One call is made at a time: what two statements do to each other inside Postgres (locks, SKIP LOCKED, snapshots) is not tried
here. A relay's poll is left out while nothing is due and nothing has happened to Redis, because it costs most of a run.
`checker.py` judges each change of the tables; `test_edges.py` holds what was found beside the schedules.
"""

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from tests import servers as real
from tests.protocol.driver import RealModel
from tests.protocol.model import AMENDMENTS, Event, Settings, Violation, schedule, shrink
from tests.protocol.mutations import MUTATIONS
from tests.protocol.stage import Stage

Found = tuple[int, str]
"""A seed, and the invariant that it broke."""


def play(
    stage: Stage, settings: Settings, seed: int, events: list[Event], trace: list[str] | None = None
) -> tuple[str, str] | None:
    """One schedule, to the end; the invariant that failed and how, or None."""
    model = RealModel(stage, settings, seed, trace)
    try:
        for event in events:
            model.step(event)
        model.drain()
    except Violation as violation:
        return violation.args[0], violation.args[1]
    finally:
        model.close()
    return None


def settings_for(mutation: str, keyed: bool) -> Settings:
    """An amendment is taken back by leaving it out, as in the model."""
    weights = MUTATIONS[mutation].weights if mutation else ()
    return Settings(keyed, frozenset(AMENDMENTS) - {mutation}, mutation, weights=weights)


def first_caught(stage: Stage, name: str, keyed: bool, seeds: Sequence[int]) -> Found | None:
    """The first of these seeds that catches the mutation."""
    settings = settings_for(name, keyed)
    with stage.mutated(MUTATIONS[name].edits):
        for seed in seeds:
            violation = play(stage, settings, seed, schedule(settings, seed))
            if violation:
                return seed, violation[0]
    return None


def show(stage: Stage, settings: Settings, seed: int) -> None:
    """The shortest timeline that still breaks the same invariant."""
    with stage.mutated(MUTATIONS[settings.mutation].edits) if settings.mutation else nullcontext():
        events = shrink(settings, seed, schedule(settings, seed), partial(play, stage))
        trace: list[str] = []
        violation = play(stage, settings, seed, events, trace) or ("", "not seen again")
    print(f"\nseed {seed}, provider {_kind(settings.keyed)}, {len(events)} events left: {': '.join(violation)}")
    print("\n".join("  " + line for line in trace), flush=True)


# ---- processes: each has a stage of its own
_stage: list[Stage] = []


def _enter(servers: real.Servers, free: "multiprocessing.SimpleQueue[tuple[str, int]]") -> None:
    _stage.append(Stage(servers, *free.get()))


def _block(block: tuple[bool, Sequence[int]]) -> tuple[bool, list[Found], int]:
    keyed, seeds = block
    settings = settings_for("", keyed)
    found = ((seed, play(_stage[0], settings, seed, schedule(settings, seed))) for seed in seeds)
    return keyed, [(seed, violation[0]) for seed, violation in found if violation], len(seeds)


def _mutant(job: tuple[str, bool, Sequence[int]]) -> tuple[str, bool, Found | None]:
    name, keyed, seeds = job
    return name, keyed, first_caught(_stage[0], name, keyed, seeds)


def _kind(keyed: bool) -> str:
    return "with keys" if keyed else "without keys"


def main() -> int:
    parser = argparse.ArgumentParser(description="Random schedules of the hand-over protocol on the real tables")
    parser.add_argument("--runs", type=int, default=200, help="per provider kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--provider", choices=("both", "keyed", "keyless"), default="both")
    parser.add_argument("--mutate", metavar="NAME[,NAME…]|all", help=f"break a rule: {', '.join(MUTATIONS)}")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.mutate and (unknown := {*options.mutate.split(",")} - {*MUTATIONS, "all"}):
        parser.error(f"unknown mutation: {', '.join(unknown)}")
    kinds = [keyed for keyed in (True, False) if options.provider in ("both", "keyed" if keyed else "keyless")]
    seeds = range(options.seed, options.seed + options.runs)
    with real.running() as servers:
        fork = multiprocessing.get_context("fork")
        free = fork.SimpleQueue()
        for number in range(1, options.processes + 1):
            free.put((real.new_database(servers), number))
        pool = fork.Pool(options.processes, _enter, (servers, free))
        with pool:
            if options.mutate:
                names = list(MUTATIONS) if options.mutate == "all" else options.mutate.split(",")
                failed, seen = _mutants(pool, [(name, keyed, seeds) for name in names for keyed in kinds])
            else:
                failed, seen = _plain(
                    pool, [(k, seeds[at : at + 10]) for at in range(0, len(seeds), 10) for k in kinds]
                )
        if seen:
            stage = Stage(servers, real.new_database(servers))
            for mutation, keyed, seed in seen[:5]:
                show(stage, settings_for(mutation, keyed), seed)
            stage.close()
    return 1 if failed else 0


def _mutants(
    pool: "multiprocessing.pool.Pool", jobs: list[tuple[str, bool, Sequence[int]]]
) -> tuple[bool, list[tuple[str, bool, int]]]:
    """Answers whether some mutation was caught nowhere; the timeline of a single one's first catch."""
    caught: dict[str, bool] = {}
    seen = []
    for name, keyed, found in pool.imap_unordered(_mutant, jobs):
        caught[name] = caught.get(name, False) or bool(found)
        what = f"seed {found[0]}: {found[1]}" if found else "NOT caught"
        print(f"{name:30} {_kind(keyed):13} {what}", flush=True)
        if found and len({job[0] for job in jobs}) == 1:
            seen.append((name, keyed, found[0]))
    return not all(caught.values()), seen


def _plain(
    pool: "multiprocessing.pool.Pool", blocks: list[tuple[bool, Sequence[int]]]
) -> tuple[bool, list[tuple[str, bool, int]]]:
    done, names, seen = Counter[str](), Counter[str](), []
    for keyed, found, count in pool.imap_unordered(_block, blocks):
        done[_kind(keyed)] += count
        if done.total() % 200 == 0:
            print(f"{done.total()} runs", file=sys.stderr, flush=True)
        for seed, name in found:
            names[name] += 1
            print(f"{_kind(keyed)}, seed {seed}: {name}", flush=True)
            if names[name] == 1:
                seen.append(("", keyed, seed))
    print(f"runs: {dict(done)}; violated: {dict(names)}", flush=True)
    return bool(names), seen


if __name__ == "__main__":
    sys.exit(main())
