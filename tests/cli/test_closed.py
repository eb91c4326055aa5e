"""`notif ps` tells which providers take no request, until when, and why."""

import re

import pytest

from notif.closings import halt, throttle
from tests.cli.shells import Shell
from tests.kit import Installation

CIRCUIT = r"resend: circuit open, next probe in \d s: 500 application_error"
CLOSED = r"post: closed, opens in \d{4} s, for transactional in \d{3,4} s: 429 slow\\x1b\[2J down"
HALTED = r"resend, domain acme.test: halted until `notif resume` or a probe that succeeds, next probe in \d\d s: 403 no"


@pytest.mark.parametrize("container", ["maintenance", "worker"])
def test_ps_tells_what_takes_no_request(notif: Installation, shell: Shell, container: str) -> None:
    env = notif.env("notif_worker")
    if container == "worker":
        del env["NOTIF_DATABASE_MAINTENANCE_URL"]
    assert len(shell("ps", env=env).out.splitlines()) == 1
    notif.app.closings.close(halt("resend", "acme.test", "403 no"))
    notif.app.closings.close(throttle("post", "429 slow\x1b[2J down", 3000, 1000))
    notif.rows("SELECT core.open_circuit('resend', '500 application_error')")
    notif.rows("UPDATE core.provider_state SET probe_at = now() + interval '9 s' WHERE state = 'circuit'")
    found = shell("ps", env=env)
    lines = sorted(found.out.splitlines()[1:])
    assert found.code == 0
    assert [bool(re.fullmatch(*each)) for each in zip((CLOSED, HALTED, CIRCUIT), lines, strict=True)] == [True] * 3, (
        lines
    )
    assert shell("ps", "--json", env=env).out.strip() == "[]"
