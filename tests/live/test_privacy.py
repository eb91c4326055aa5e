"""What is personal stays in Postgres and at the provider: jobs of every fate, and a look through everything else."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from notif.adapters.redis_carrier import NAMESPACE
from tests.kit import EMAIL, Installation, Proc, eventually
from tests.privacy import leaks, secrets
from tests.product import PERSON

KEY = "re_live_4f9c2d_secret"
NAME, BODY, ORDER = "Zoe Quist-Ångström", "private-body-5d1e", "ORDER-77-XYZ"
WORDS = [PERSON, "zoe.quist", "private.test", "Quist", BODY, ORDER, KEY]


def append_only_file(notif: Installation) -> list[Path]:
    """Every command that ever changed something on our own Redis."""
    valkey = notif.servers.valkey
    return [] if valkey is None else list((valkey.directory / "appendonlydir").iterdir())


def test_nothing_personal_leaves_postgres(loyalty: Installation) -> None:
    relay, maintenance = loyalty.relay(), loyalty.maintenance()
    worker = loyalty.worker("transactional", "loyalty", RESEND_API_KEY=KEY)
    worker.signal(signal.SIGSTOP)  # so that references lie on Redis
    person = {"email": PERSON, "name": NAME, "order_number": ORDER}
    message = {"to": PERSON, "subject": BODY, "text": BODY}
    delivered = [loyalty.send(**person), loyalty.send("email.message", **message)]
    eventually(lambda: loyalty.redis.llen(f"{NAMESPACE}:{EMAIL}") == len(delivered))
    assert leaks(loyalty.redis, [], WORDS) == []
    worker.signal(signal.SIGCONT)
    for job in delivered:
        loyalty.until(job, "delivered")
    said = f"Invalid `to` field: {PERSON}"
    refusal = {"fault": "error", "status": 422, "name": "validation_error", "message": said}
    loyalty.sandbox.faults([refusal, {"fault": "500"}, {"fault": "reset_after"}])
    dead = loyalty.send("email.message", **message)
    loyalty.until(dead, "dead")  # and is told as an alert, in the log
    failed = loyalty.send("points.earned", points=1, answer="quote")
    loyalty.until(failed, "dead", queue="loyalty")
    retried = [loyalty.send(**person), loyalty.send(**person)]
    for job in retried:
        loyalty.until(job, "delivered")
    poisoned = poisonous_row(loyalty, worker, person)
    loyalty.until(poisoned, "dead")
    eventually(lambda: loyalty.one("SELECT count(*) FROM core.incident WHERE provider_id IS NOT NULL") == 3)
    assert PERSON in loyalty.one("SELECT last_error FROM core.dead_letters WHERE job_id = %s", dead)
    logs = [process.log for process in (relay, maintenance, worker)]
    assert leaks(loyalty.redis, [*logs, *append_only_file(loyalty)], [*WORDS, *secrets(loyalty.servers)]) == []
    assert "[address]" in maintenance.log.read_text(), "the alert quoted it"
    assert "KeyError" in worker.log.read_text(), "the handler's error was told, without its words"


def poisonous_row(notif: Installation, worker: Proc, person: dict[str, str]) -> UUID:
    """A row whose data fails its model, as only SQL can make one."""
    worker.signal(signal.SIGSTOP)
    job = notif.send(**person)
    data = json.dumps({"email": NAME, "carrier": 7})
    notif.rows("UPDATE core.outbox SET data = data || %s WHERE job_id = %s", data, job)
    worker.signal(signal.SIGCONT)
    return job


@pytest.mark.parametrize("place", ["key", "string", "list", "set", "zset", "hash", "log"])
def test_the_look_finds_what_is_there(notif: Installation, tmp_path: Path, place: str) -> None:
    log = tmp_path / "log9"
    put: dict[str, Callable[[], object]] = {
        "key": lambda: notif.redis.set("a-needle-b", 1),
        "string": lambda: notif.redis.set("x", "a NEEDLE b"),
        "list": lambda: notif.redis.rpush("x", "needle"),
        "set": lambda: notif.redis.sadd("x", "needle"),
        "zset": lambda: notif.redis.zadd("x", {"needle": 1}),
        "hash": lambda: notif.redis.hset("x", "field", "needle"),
        "log": lambda: log.write_text("a Needle"),
    }
    assert leaks(notif.redis, [log], ["needle"]) == []
    put[place]()
    assert len(leaks(notif.redis, [log], ["needle"])) == 1
