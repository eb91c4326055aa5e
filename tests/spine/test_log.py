"""What a log line may say of an exception: where it came from, and words that are ours."""

import io
import json
import subprocess
import sys
from typing import Any

from notif.bootstrap.log import HIDDEN, make_log
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
