"""The checker and the plan by themselves, on evidence made up."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.catalogue import CATALOGUE
from chaos.checker import check
from chaos.evidence import End, Evidence, Letter, Waiting, surprises
from chaos.journal import Published
from chaos.plan import APART, Injection, draw_plan
from chaos.plant import ROLES
from chaos.recovery import Outage, Sighting, longest, recoveries
from chaos.trial import possible_plan
from tests.kit import ROOT

MAIL, LOYALTY = "notif.email.transactional", "loyalty"
BOTH = Published("both", "order.placed", (MAIL, LOYALTY), 0.0, taken=True)
CALLED_OFF = Published("off", "order.shipped", (MAIL,), 0.0, taken=True, cancelled={MAIL: True})
GIVEN_UP = Published("dead", "order.shipped", (MAIL,), 0.0, taken=True)
JOBS = [BOTH, CALLED_OFF, GIVEN_UP]
DONE = [End("both", MAIL, "delivered", 1.0), End("both", LOYALTY, "delivered", 1.0), End("off", MAIL, "cancelled", 1.0)]
LETTER = Letter("dead", MAIL, "pending_review", "failed", "invalid_parameter")
GOOD = Evidence(DONE, [LETTER], [], {"both": 1}, {"both": 1})


def found(seen: Evidence, jobs: list[Published] = JOBS) -> list[tuple[str, str]]:
    return [(wrong.what, wrong.job) for wrong in check(jobs, seen).wrong]


def test_books_that_add_up() -> None:
    books = check(JOBS, replace(GOOD, ends=[*DONE, End("both", MAIL, "duplicate", 2.0)]))
    assert books.wrong == []
    assert (books.jobs, books.rows) == (3, 4)
    assert books.ends == {"delivered": 2, "cancelled": 1, "dead, failed": 1}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (replace(GOOD, arrived={}), [("lost", "both")]),
        (replace(GOOD, credited={}), [("lost", "both")]),
        (replace(GOOD, ends=DONE[1:], arrived={}), [("lost", "both")]),
        (replace(GOOD, arrived={"both": 2}), [("doubled", "both")]),
        (replace(GOOD, credited={"both": 2}), [("doubled", "both")]),
        (replace(GOOD, letters=[], waiting=[Waiting("dead", MAIL, "claimed")]), [("stuck", "dead")]),
        (replace(GOOD, on_redis={"notif:loyalty.msgs": 1}), [("stuck", "")]),
        (replace(GOOD, ends=[*DONE, End("dead", MAIL, "delivered", 2.0)], arrived={"both": 1, "dead": 1}),
         [("wrong", "dead"), ("wrong", "dead")]),
        (replace(GOOD, arrived={"both": 1, "off": 1}), [("wrong", "off")]),
        (replace(GOOD, arrived={"both": 1, "dead": 1}), [("wrong", "dead")]),
        (replace(GOOD, ends=DONE[::2]), [("lost", "both"), ("wrong", "both")]),
        (replace(GOOD, arrived={"both": 1, "stranger": 1}), [("wrong", "stranger")]),
        (replace(GOOD, ends=[*DONE, End("both", "other", "delivered", 2.0)]), [("wrong", "both")]),
        (replace(GOOD, leaks=["relay#1.log"]), [("wrong", "")]),
        (replace(GOOD, surprises={"relay: KeyError": 1}), [("wrong", "")]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_noticed(seen: Evidence, expected: list[tuple[str, str]]) -> None:
    assert found(seen) == expected


def test_a_dead_letter_of_unknown_outcome_may_have_arrived() -> None:
    seen = replace(GOOD, letters=[replace(LETTER, outcome="unknown")], arrived={"both": 1, "dead": 1})
    assert found(seen) == []


def test_what_cancel_answered_is_held_against_the_end() -> None:
    refused = replace(CALLED_OFF, cancelled={MAIL: False})
    assert found(GOOD, [BOTH, refused, GIVEN_UP]) == [("wrong", "off")]
    delivered = replace(GOOD, ends=[*DONE[:2], End("off", MAIL, "delivered", 1.0)], arrived={"both": 1, "off": 1})
    assert found(delivered) == [("wrong", "off")]
    assert found(delivered, [BOTH, refused, GIVEN_UP]) == []


def test_a_job_whose_publishing_was_never_answered_may_be_nowhere() -> None:
    unanswered = Published("never", "order.shipped", (MAIL,), 0.0)
    assert found(GOOD, [*JOBS, unanswered]) == []


def test_tracebacks_in_the_logs_are_counted(tmp_path: Path) -> None:
    (tmp_path / "relay#1.log").write_text(
        '{"event": "relay failed", "exception": "Traceback …\\nKeyError: 1"}\n{"event": "fine"}\nTraceback (most recent'
    )
    assert surprises(tmp_path) == {"relay: relay failed: KeyError: 1": 1, "relay: a traceback outside the log": 1}


@pytest.mark.parametrize("module", ["checker", "evidence", "journal", "recovery"])
def test_the_checker_uses_no_code_of_the_products(module: str) -> None:
    assert not re.search(
        r"^ *(from|import) (notif|workers)", (ROOT / "chaos" / f"{module}.py").read_text(), re.MULTILINE
    )


def seen_at(*times: float, queue: str = MAIL) -> list[Sighting]:
    return [Sighting(queue, at) for at in times]


def test_recovery_is_timed_from_the_last_return_before_a_delivery() -> None:
    outages = [Outage("redis", 5.0, away=True), Outage("kill", 6.0, away=False), Outage("kill", 12.0, away=False)]
    found = recoveries(outages, seen_at(1.0, 9.0, 10.0, 30.0))
    assert [(each.seconds, each.after, each.queue) for each in found] == [(3.0, "kill", MAIL)]
    assert longest(found, held=False) == found[0]
    assert longest(found, held=True).seconds == 0.0
    assert recoveries([], seen_at(1.0, 30.0)) == []


def test_what_is_held_rightly_is_known_on_its_own_queues_only() -> None:
    halt = Outage("halt", 10.0, away=True, held=45.0, queues="notif.")
    seen = [*seen_at(1.0, 70.0), *seen_at(1.0, 70.0, queue=LOYALTY)]
    assert {(each.queue, each.seconds, each.held) for each in recoveries([halt], seen)} == {
        (MAIL, 60.0, 45.0),
        (LOYALTY, 60.0, 0.0),
    }


def test_a_return_while_something_still_holds_jobs_is_given_as_long() -> None:
    outages = [Outage("clock", 10.0, away=True, held=20.0), Outage("redis", 25.0, away=True)]
    assert [each.held for each in recoveries(outages, seen_at(1.0, 12.0, 60.0))] == [20.0, 20.0]
    assert [each.held for each in recoveries(outages, seen_at(1.0, 31.0 - 0.5, 60.0))] == [20.0]
    assert [each.held for each in recoveries([outages[0], Outage("redis", 40.0, away=True)], seen_at(35.0, 60.0))] == [
        0.0
    ]


def test_the_same_seed_is_the_same_plan() -> None:
    plans = [draw_plan(seed, 180.0, list(ROLES), CATALOGUE) for seed in (7, 7, 8)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert {injection.fault for injection in plans[0]} == set(CATALOGUE)


def test_every_fault_comes_within_four_minutes_whatever_the_seed() -> None:
    for seed in range(20):
        assert {injection.fault for injection in draw_plan(seed, 240.0, list(ROLES), CATALOGUE)} == set(CATALOGUE)


def test_what_a_machine_lacks_leaves_the_rest_of_a_plan_as_it_is() -> None:
    whole, without = possible_plan(7, 3.0, []), possible_plan(7, 3.0, ["clocks", "disks"])
    left_out = {injection.fault for injection in whole if injection not in without}
    assert left_out == {name for name, fault in CATALOGUE.items() if fault.needs}
    assert without == [injection for injection in whole if injection.fault not in left_out]


def test_a_clock_that_goes_back_excuses_as_long_a_wait_and_no_longer() -> None:
    fault = CATALOGUE["clock jump, postgres"]
    ahead, behind = (Injection(1, 0.0, 9.0, "", "", {"by": by}) for by in (30.0, -30.0))
    assert [held(ahead) for held in fault.held] == [0.0, 30.0]
    assert [held(behind) for held in fault.held] == [30.0, 0.0]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_keeps_to_its_time_and_harms_a_thing_once_at_a_time(seed: int) -> None:
    plan = draw_plan(seed, 60.0, list(ROLES), CATALOGUE)
    free: dict[str, float] = {}
    for injection in plan:
        assert free.get(injection.target, 0.0) <= injection.at <= injection.end <= 60.0
        free[injection.target] = injection.end + APART - 0.02
    assert len(plan) > 10
