"""Everything that breaks Dramatiq's own worker, put between good jobs of a real one."""

import json
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

from notif.adapters.redis_carrier import NAMESPACE
from notif.ports import Reference
from tests import bodies
from tests.kit import EMAIL, Installation, Proc, eventually

GOOD = 40


def threads(process: Proc) -> int:
    return len(list(Path(f"/proc/{process.pid}/task").iterdir()))


def keys(notif: Installation, pattern: str) -> list[bytes]:
    found: Any = notif.redis.keys(f"{NAMESPACE}:{pattern}")
    return list(found)


def test_every_structural_case_between_good_jobs(notif: Installation) -> None:
    notif.relay()
    worker = notif.worker()
    notif.until(notif.send(), "delivered")
    before = threads(worker)
    cases = bodies.structural(Reference(UUID(int=8), EMAIL, notif.tenant, 5))
    worker.signal(signal.SIGSTOP)  # while they are laid out in a row
    jobs = notif.send_many(GOOD)
    eventually(lambda: notif.redis.llen(f"{NAMESPACE}:{EMAIL}") == GOOD)
    good: Any = notif.redis.lrange(f"{NAMESPACE}:{EMAIL}", 0, -1)
    notif.redis.delete(f"{NAMESPACE}:{EMAIL}")
    for n, (identifier, body) in enumerate(cases.values()):
        notif.redis.hset(f"{NAMESPACE}:{EMAIL}.msgs", identifier, body)
        notif.redis.rpush(f"{NAMESPACE}:{EMAIL}", identifier, *good[n : n + 1])
    notif.redis.rpush(f"{NAMESPACE}:{EMAIL}", "an id without a body", *good[len(cases) :])
    worker.signal(signal.SIGCONT)
    for job in jobs:
        notif.until(job, "delivered")
    eventually(lambda: not keys(notif, "__acks__*") and not keys(notif, "*.msgs"), what="nothing is left on Redis")
    letters = notif.rows("SELECT raw, cause, attempts, job_id FROM core.dead_letters ORDER BY id")
    assert [bytes(row[0]) for row in letters] == [body for _, body in cases.values()], "one each, in order, all of it"
    assert {row[1:3] for row in letters} == {("poison", 0)}
    assert sorted(mail["tags"]["job"] for mail in notif.mails())[-1:] != []
    for job in jobs:
        ((history, attempts),) = notif.rows("SELECT history, attempts FROM core.delivery WHERE job_id = %s", job)
        assert ([move["state"] for move in history].count("pushed"), attempts) == (1, 1), "no neighbour was delayed"
    assert worker.alive
    assert threads(worker) - before in (0, 1), "none lost; the log has one more while it counts what repeats itself"
    assert worker.stop() == 0
    said = worker.log.read_text()
    told = [json.loads(line) for line in said.splitlines() if "poison buried" in line]
    assert sum(1 + line.get("repeated", 0) for line in told) == len(cases)
    assert not [word for word in ("Restarting consumer", "Traceback", "threads have died", "CRITICAL") if word in said]
    assert keys(notif, "*.XQ*") == []
