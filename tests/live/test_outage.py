"""The provider goes down and comes back: two real workers, both lanes."""

import re
import time

import pytest

from tests.kit import CONFIG, EMAIL, ROOT, Installation, eventually

MARKETING = "notif.email.marketing"
MAIL = {"from": "a@acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}
RETURN = 30.0
"""Seconds after the service's return within which all must go on by itself."""


@pytest.mark.parametrize("fault", ["500", "reset_after"])
def test_a_provider_that_is_down_and_returns(notif: Installation, fault: str) -> None:
    notif.relay()
    patient = notif.folder / "patient.yaml"  # backoffs of half a minute and more, as in production
    text = re.sub(r"default: {attempts.*", "default: {attempts: 5, base: 30s, cap: 1h}", CONFIG.read_text())
    patient.write_text(text.replace("../config/templates", str(ROOT / "config" / "templates")))
    workers = [notif.worker("transactional", "marketing", NOTIF_CONFIG=str(patient)) for _ in range(2)]
    notif.sandbox.faults([{"fault": fault, "times": None}])
    jobs = notif.send_many(20) + notif.send_many(10, "newsletter", **MAIL)
    waits = "SELECT 1 FROM core.provider_state WHERE state = 'circuit' AND probe_wait >= interval '8 s'"
    eventually(lambda: notif.rows(waits), within=60, what="two probes have failed")
    in_vain = len(notif.sandbox.requests())
    notif.sandbox.faults([])
    returned = time.monotonic()
    notif.until_empty(RETURN)
    print(f"{fault}: {in_vain} requests in vain, all delivered {time.monotonic() - returned:.1f} s after the return")
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))
    assert notif.rows("SELECT verdict, count(*)::int FROM core.delivery GROUP BY 1") == [("delivered", 30)]
    assert notif.one("SELECT max(attempts) FROM core.delivery") < 5
    assert in_vain < 30
    log = "".join(worker.log.read_text() for worker in workers)
    assert (log.count('"circuit opened"'), log.count('"provider goes on"'), log.count('"level": "error"')) == (1, 1, 0)
    assert {state for job in jobs for state in (notif.state(job, EMAIL), notif.state(job, MARKETING))} == {
        "delivered",
        "unknown",
    }
