"""The provider goes down and comes back: two real workers, both lanes. What their logs make of an outage."""

import json
import re
import threading
import time
from collections import Counter

import pytest

from tests.kit import CONFIG, EMAIL, ROOT, Installation, eventually, patient

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


def test_the_log_says_what_happened_once_not_once_a_job(loyalty: Installation) -> None:
    """Two hundred jobs fail five times each, and Postgres lets the worker wait: some lines, which add up to all of it."""
    loyalty.config = patient(loyalty)
    loyalty.relay()
    worker = loyalty.worker("loyalty", "transactional")
    loyalty.send_many(200, "points.earned", points=1, answer="unavailable")
    letters = "SELECT count(*) FROM core.dead_letters WHERE cause = 'attempts_spent'"
    eventually(lambda: loyalty.one(letters) == 200, within=120, what="all are given up on")
    loyalty.sandbox.faults([{"fault": "hold", "times": 8}])
    loyalty.send_many(8)
    loyalty.sandbox.wait_for_held(8)
    loyalty.admin("ALTER ROLE notif_worker NOLOGIN")
    try:
        loyalty.admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'notif_worker'")
        loyalty.sandbox.release()
        eventually(lambda: "settle has no answer" in worker.log.read_text(), what="the calls are settled in vain")
        threading.Event().wait(3)  # each of the eight tries again and again
    finally:
        loyalty.admin("ALTER ROLE notif_worker LOGIN")
    loyalty.until_empty()
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    told: Counter[str] = Counter()
    for line in lines:
        told[line["event"]] += 1 + line.get("repeated", 0)
    assert told["handler failed"] == 1000
    assert told["settle has no answer"] > 16
    assert len(lines) <= 30, Counter(line["event"] for line in lines)
    first = next(line for line in lines if line["event"] == "handler failed")
    assert "Unavailable: an outside thing" in first["exception"]
    assert (told["worker started"], told["worker stopped"]) == (1, 1)
