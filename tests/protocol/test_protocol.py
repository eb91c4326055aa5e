"""The schedules of the model on the real tables: nothing breaks the protocol, and each rule that is broken on purpose is noticed.

A longer run: `python -m tests.protocol.real --runs 2000`, `--mutate all`.
"""

import pytest

from tests.protocol import model
from tests.protocol.model import AMENDMENTS, Settings, schedule
from tests.protocol.mutations import MUTATIONS, NOT_HERE
from tests.protocol.real import first_caught, play
from tests.protocol.stage import Stage

KINDS = {"with keys": True, "without keys": False}


@pytest.mark.parametrize("keyed", KINDS.values(), ids=KINDS)
def test_the_model_holds(keyed: bool) -> None:
    settings = Settings(keyed)
    found = [(seed, model.play(settings, seed, schedule(settings, seed))) for seed in range(1, 151)]
    assert [(seed, violation) for seed, violation in found if violation] == []


@pytest.mark.parametrize("keyed", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("first", [1, 1001])
def test_the_real_functions_hold(stage: Stage, keyed: bool, first: int) -> None:
    settings = Settings(keyed)
    for seed in range(first, first + 6):
        assert play(stage, settings, seed, schedule(settings, seed)) is None, f"seed {seed}, {keyed=}"


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_noticed(stage: Stage, name: str) -> None:
    mutation = MUTATIONS[name]
    keyed = mutation.keyed > 0
    seed = mutation.keyed or mutation.keyless
    assert seed, (
        f"{name}: no seed is known that catches it; find one by `python -m tests.protocol.real --mutate {name}`"
    )
    found = first_caught(stage, name, keyed, [seed, *range(1, 31)])  # the others: should a change have moved the seed
    assert found, f"{name} breaks a rule, and nothing is noticed"


def test_every_rule_of_the_model_is_broken_here_or_says_why_not() -> None:
    assert set(model.MUTATIONS) | set(AMENDMENTS) <= set(MUTATIONS) | set(NOT_HERE)
    assert not set(MUTATIONS) & set(NOT_HERE)
