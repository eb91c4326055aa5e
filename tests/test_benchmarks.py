"""What of the benchmarks is decided without a server: what is asked for, and what counts as growth."""

import pytest

from benchmarks.__main__ import ALL, arguments
from benchmarks.endurance import verdict
from benchmarks.report import QUICK, Size


def test_nothing_said_is_all_of_them_but_the_long_ones() -> None:
    assert arguments([]) == (list(ALL), False, Size())


def test_what_is_said_is_done() -> None:
    asked = [
        "outages",
        "--only",
        "Redis down",
        "--only",
        "provider fails, an hour",
        "endurance",
        "--minutes",
        "2",
        "--json",
    ]
    names, as_json, size = arguments(asked)
    assert (names, as_json) == (["outages", "endurance"], True)
    assert (size.only, size.minutes) == (["Redis down", "provider fails, an hour"], 2.0)
    assert arguments(["--quick"])[2] == QUICK


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["outage"], "NAME: there is no benchmark 'outage'; did you mean 'outages'?"),
        (["outages", "--only", "Redis dwn"], "--only: there is no outage 'Redis dwn'; did you mean 'Redis down'?"),
        (["idle", "--only", "Redis down"], "--only: is for outages, which is not asked for"),
        (["--minutes", "2"], "--minutes: is for endurance, which is not asked for"),
        (["endurance", "--minutes", "0"], "--minutes: 0 is not between 0.5 and 600"),
        (["endurance", "--minutes", "nan"], "--minutes: nan is not between 0.5 and 600"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    asked: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(asked)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"./run bench: error: {said}"


@pytest.mark.parametrize(
    ("what", "values", "said"),
    [
        ("threads", [15, 15, 16, 15, 15, 16], "steady"),
        ("descriptors", [20, 21, 21, 22, 40, 21, 22], "steady"),  # it went up and came back
        ("descriptors", [20, 21, 22, 23, 24, 25, 26], "grows"),
        ("MB", [97.0, 97.1, 97.3, 97.3, 97.5], "steady"),
        ("MB", [97.0, 97.6, 98.2, 98.8, 99.4], "grows"),
    ],
)
def test_growth_is_told_from_noise(what: str, values: list[float], said: str) -> None:
    assert verdict("relay", what, list(enumerate(values)))["verdict"] == said
