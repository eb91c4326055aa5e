"""What a log line may say of an exception: where it came from, and words that are ours. What repeats itself is counted."""

import io
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notif.bootstrap.log import HIDDEN, make_log, tell_rest
from notif.bootstrap.repeats import MOST
from notif.errors import Unavailable
from tests.kit import ROOT

PERSON = "zoe.quist@private.test"


def logged(raised: BaseException, /, **fields: Any) -> dict[str, Any]:
    out = io.StringIO()
    try:
        raise raised
    except BaseException:
        make_log(out).exception("it failed", **fields)
    said: dict[str, Any] = json.loads(out.getvalue())
    return said


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_a_strangers_words_are_left_out_and_its_place_is_told() -> None:
    said = logged(KeyError("Zoe Quist"))["exception"]
    assert said.endswith("\nKeyError")
    assert "test_log.py" in said
    assert "Quist" not in said


def test_our_own_words_are_told_and_so_is_the_cause() -> None:
    said = logged(caused(Unavailable("Redis does not answer"), ValueError("Zoe Quist")))["exception"].splitlines()
    assert [line for line in said if line in ("ValueError", "which led to:")] == ["ValueError", "which led to:"]
    assert said[-1] == "Unavailable: Redis does not answer"


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, other = ValueError("a"), TypeError("b")
    one.__cause__, other.__cause__ = other, one
    assert logged(one)["exception"].splitlines()[-1] == "ValueError"


def test_no_address_is_told_in_any_field() -> None:
    said = logged(
        Unavailable(f"said {PERSON}"),
        error=f"Invalid `to`: <{PERSON}>, sorry",
        places=[PERSON, 7],
        url=f"redis://{PERSON}:1",
    )
    assert said["error"] == f"Invalid `to`: <{HIDDEN}>, sorry"
    assert said["places"] == [HIDDEN, 7]
    assert PERSON not in json.dumps(said)


def test_libraries_say_no_more_than_we_do() -> None:
    code = (
        "import logging; from notif.bootstrap.log import quiet_libraries; quiet_libraries()\n"
        "logging.getLogger('x').info('unheard')\n"
        "try: raise ValueError('Zoe Quist')\n"
        f"except ValueError: logging.getLogger('x').exception('to {PERSON}')"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stderr
    assert said.splitlines()[0] == f"ERROR x to {HIDDEN}"
    assert said.splitlines()[-1] == "ValueError"
    assert "Quist" not in said


# ---- what happens ten thousand times


class Hours:
    """A log on a clock of its own; `turns` are due when their time has come."""

    def __init__(self) -> None:
        self.out, self.time = io.StringIO(), 0.0
        self._turns: list[tuple[float, Callable[[], None]]] = []
        self.log = make_log(self.out, clock=lambda: self.time, later=self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._turns.append((self.time + seconds, call))

    def pass_(self, seconds: float) -> None:
        self.time += seconds
        while self._turns and min(self._turns, key=lambda turn: turn[0])[0] <= self.time:
            self._turns.sort(key=lambda turn: turn[0])
            self._turns.pop(0)[1]()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


def left(hours: Hours, job: int, error: str = "Postgres does not answer: 127.0.0.1", queue: str = "a") -> None:
    hours.log.warning("left to its timer", job_id=str(job), queue=queue, error=error)


@pytest.mark.parametrize("jobs", [300, 30_000])
def test_an_hours_outage_is_a_few_lines_however_many_jobs_it_meets(jobs: int) -> None:
    hours = Hours()
    for job in range(jobs):
        left(hours, job)
        hours.pass_(3600 / jobs)
    tell_rest(hours.log)
    lines = hours.lines()
    assert lines[0]["job_id"] == "0"
    assert "repeated" not in lines[0]
    assert len(lines) <= 20
    assert sum(1 + line.get("repeated", 0) for line in lines) == jobs


def test_what_is_counted_is_told_without_another_one() -> None:
    hours = Hours()
    for job in range(10):
        left(hours, job)
        hours.pass_(0.1)
    hours.pass_(60)
    first, last = hours.lines()
    assert (first["job_id"], last["job_id"], last["repeated"]) == ("0", "9", 8)
    since = datetime.fromisoformat(last["since"])
    assert since < datetime.fromisoformat(last["timestamp"]) - timedelta(seconds=20)


def test_after_silence_it_is_told_at_once_again() -> None:
    hours = Hours()
    for _ in range(5):
        left(hours, 1)
        left(hours, 2)
        hours.pass_(600)
    assert [line.get("repeated") for line in hours.lines()] == [None, 0] * 5


def test_different_things_stay_apart() -> None:
    hours = Hours()
    for job in range(50):
        left(hours, job)
        left(hours, job, error=f"Redis does not answer: Error {job}")
        left(hours, job, queue="b")
        hours.log.error("left to its timer", queue="a", error="Postgres does not answer")
        hours.log.warning("closing not written", provider="resend", error="Postgres does not answer")
        for raised in (KeyError(job), ValueError(job), Unavailable(f"Redis: {job}"), Unavailable(f"Postgres: {job}")):
            try:
                raise raised
            except Exception:
                hours.log.exception("handler failed", consumer="x", job_id=str(job))
    assert len(hours.lines()) == 9
    tell_rest(hours.log)
    assert [line["repeated"] for line in hours.lines()[9:]] == [48] * 9
    assert {line["exception"] for line in hours.lines()[9:] if "exception" in line} == {
        "KeyError",
        "ValueError",
        "Unavailable: Redis",
        "Unavailable: Postgres",
    }


def test_ids_and_ports_make_no_kinds_and_a_status_does() -> None:
    hours = Hours()
    for number in range(1000, 1100):
        left(hours, number, error=f"process {number} of {uuid.uuid4()} is gone")
        left(hours, number, error=f"{500 + number % 2} internal_server_error")
    assert sorted(line["error"][:4] for line in hours.lines()) == ["500 ", "501 ", "proc"]


def test_what_a_person_must_hear_and_what_starts_and_stops_is_never_counted() -> None:
    hours = Hours()
    for _ in range(20):
        hours.log.error("alert", key="halt:resend:")
        hours.log.warning("circuit opened", provider="resend")
        hours.log.info("relay goes on")
    assert len(hours.lines()) == 60


def test_however_many_kinds_there_are_memory_and_lines_are_bounded() -> None:
    hours = Hours()
    for number in range(10 * MOST):
        hours.log.warning(f"event {'x' * number}")
    assert len(hours.lines()) == MOST + 1
    hours.pass_(61)
    assert sum(1 + line.get("repeated", 0) for line in hours.lines()) == 10 * MOST
    hours.log.warning("another")
    assert hours.lines()[-1]["event"] == "another", "those of before are forgotten"


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 400)), max_size=60))
def test_whatever_comes_each_one_is_counted_once(events: list[tuple[int, float]]) -> None:
    hours = Hours()
    for queue, seconds in events:
        left(hours, 1, queue=str(queue))
        hours.pass_(seconds)
    tell_rest(hours.log)
    for queue in range(4):
        mine = [line for line in hours.lines() if line["queue"] == str(queue)]
        assert sum(1 + line.get("repeated", 0) for line in mine) == [each for each, _ in events].count(queue)


def test_threads_count_together() -> None:
    hours = Hours()
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait(10)
        for job in range(200):
            left(hours, job)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell_rest(hours.log)
    assert [line.get("repeated") for line in hours.lines()] == [None, 1598]


def test_libraries_repeat_themselves_no_more_than_we_do() -> None:
    code = (
        "import logging; from notif.bootstrap.log import make_log, quiet_libraries, tell_rest; quiet_libraries()\n"
        "for n in range(300):\n"
        "    logging.getLogger('x').critical('Consumer %s: %s', n, 'gone')\n"
        "    try: raise ValueError(n)\n"
        "    except ValueError: logging.getLogger('x').exception('to %s', n)\n"
        f"    logging.getLogger('y').warning('of %s', '{PERSON}')\n"
        "tell_rest(make_log())"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stderr
    lines = [line.partition(" since=")[0] for line in said.splitlines() if line[0] != " "]
    assert lines == [
        "CRITICAL x Consumer 0: gone",
        "ERROR x to 0",
        "ValueError",
        f"WARNING y of {HIDDEN}",
        "CRITICAL x Consumer 299: gone repeated=298",
        "ERROR x to 299 repeated=298",
        f"WARNING y of {HIDDEN} repeated=298",
    ]


def test_a_full_disk_fails_no_job() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w", buffering=1) as full:
        log = make_log(full)
        log.info("started")
        log.warning("left to its timer")
        log.warning("left to its timer")
        tell_rest(log)
        with suppress(OSError):
            full.close()
