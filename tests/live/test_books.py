"""Many jobs through real processes: each arrives once, and the books add up."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from notif.adapters.postgres.database import driver_url
from notif.ports import Publication
from tests.kit import EMAIL, ROOT, Installation, eventually

PUBLISH = """
import sys
from notif.bootstrap import App
from notif.envelope import Envelope
app = App.from_settings()
for n in range(int(sys.argv[2])):
    data = {"email": f"u{n}@example.test", "name": "U", "order_number": f"A-{n}", "carrier": "DHL"}
    app.queue.publish("notif.email.transactional", Envelope.new(sys.argv[1], "order.shipped", data))
"""


def books(notif: Installation) -> dict[str, int]:
    ended = dict(notif.rows("SELECT verdict, count(*)::int FROM core.delivery GROUP BY verdict"))
    dead = notif.one("SELECT count(*)::int FROM core.dead_letters WHERE status <> 'replayed'")
    return {**ended, "dead": dead, "outbox": notif.one("SELECT count(*)::int FROM core.outbox")}


def test_a_thousand_jobs_by_three_publishers_and_two_workers(notif: Installation) -> None:
    notif.relay()
    notif.worker()
    notif.worker()
    env = notif.env("notif_publisher")
    argv = [sys.executable, "-c", PUBLISH, str(notif.tenant)]
    publishers = [subprocess.Popen([*argv, str(n)], env=env, cwd=ROOT) for n in (334, 333, 333)]
    assert [publisher.wait(120) for publisher in publishers] == [0, 0, 0]
    notif.until_empty(120)
    jobs = [mail["tags"]["job"] for mail in notif.mails()]
    assert (len(jobs), len(set(jobs))) == (1000, 1000)
    assert books(notif) == {"delivered": 1000, "dead": 0, "outbox": 0}
    assert notif.one("SELECT count(*) FROM core.processed_job") == 1000


def test_flushall_with_500_waiting_and_50_in_flight(notif: Installation) -> None:
    relay = notif.relay()
    notif.sandbox.faults([{"fault": "hold", "times": 50}])
    notif.worker(NOTIF_CONFIG=str(wide(notif)))
    jobs = notif.send_many(550)
    notif.sandbox.wait_for_held(50, 60)
    eventually(lambda: notif.one("SELECT count(*) FROM core.outbox WHERE state = 'pushed'") > 0)
    notif.redis.flushall()
    notif.sandbox.release()
    notif.until_empty(120)
    arrived = [mail["tags"]["job"] for mail in notif.mails()]
    assert sorted(arrived) == sorted(str(job) for job in jobs)
    assert relay.alive


def wide(notif: Installation) -> str:
    """The tests' configuration with 60 threads, and calls long enough to hold 50 of them."""
    text = (
        notif.config.read_text()
        .replace("threads: 8, lease: 6s", "threads: 60, lease: 40s")
        .replace("deadline: 1s", "deadline: 30s")
    )
    path = notif.folder / "wide.yaml"
    path.write_text(text.replace("../config/templates", str(ROOT / "config" / "templates")))
    return str(path)


def test_the_callers_transaction(notif: Installation) -> None:
    notif.relay()
    notif.worker()
    engine = create_engine(driver_url(notif.servers.url("notif_publisher", notif.database)), poolclass=NullPool)
    never, once = notif.envelope(), notif.envelope()
    with Session(engine) as session:
        notif.app.queue.publish(EMAIL, never, session=session)
        session.rollback()
        notif.app.queue.publish(EMAIL, once, session=session)
        session.commit()
    notif.until(once.job_id, "delivered")
    assert notif.state(never.job_id) == "unknown"
    assert [mail["tags"]["job"] for mail in notif.mails()] == [str(once.job_id)]


def test_a_publisher_that_owns_nothing(notif: Installation) -> None:
    """A product's own role, with the publisher's rights and no other, inside its own transaction."""
    notif.admin(
        "DO $$ BEGIN CREATE ROLE shop LOGIN PASSWORD 'shop'; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        "GRANT notif_publisher TO shop"
    )
    url = notif.servers.url("shop", notif.database).replace(
        notif.servers.url("shop", "").split(":")[2].split("@")[0], "shop"
    )
    engine = create_engine(driver_url(url), poolclass=NullPool)
    envelope = notif.envelope()
    with Session(engine) as session, session.begin():
        notif.app.queue.publish(EMAIL, envelope, session=session)
    assert notif.state(envelope.job_id) == "ready"
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT * FROM core.outbox")


def test_ten_thousand_jobs_of_next_week_delay_nobody(notif: Installation) -> None:
    notif.relay()
    notif.worker()
    later = datetime.now(UTC) + timedelta(days=7)
    queue = notif.app.queue
    queue.publish_many([Publication((EMAIL,), notif.envelope(order_number=f"A-{n}"), later) for n in range(10_000)])
    now = notif.send()
    notif.until(now, "delivered", within=15)
    assert notif.one("SELECT count(*) FROM core.outbox WHERE state = 'scheduled'") == 10_000


def test_ten_thousand_jobs_of_a_hundred_tenants_are_a_handful_of_round_trips(notif: Installation) -> None:
    tenants = [notif.add_tenant(f"tenant {n}") for n in range(100)]
    jobs = [Publication((EMAIL,), notif.envelope(tenant=tenants[n % 100])) for n in range(10_000)]
    calls = "SELECT calls FROM pg_stat_user_functions WHERE schemaname = 'core' AND funcname = 'publish'"
    notif.admin(f"ALTER DATABASE {notif.database} SET track_functions = 'pl'")
    notif.app.close()
    before = notif.one(calls) or 0
    notif.app.queue.publish_many(jobs)
    notif.app.close()
    eventually(lambda: (notif.one(calls) or 0) > before)
    assert notif.one(calls) - before <= 6
    assert notif.one("SELECT count(DISTINCT tenant_id) FROM core.outbox") == 100


def test_one_tenants_flood_does_not_hold_up_another(notif: Installation) -> None:
    """In turn by tenant: with 2,000 jobs ahead, the other's job is among the first that go."""
    other = notif.add_tenant("Other")
    notif.send_many(2_000)
    small = notif.send(tenant=other)
    notif.relay()
    notif.worker()
    notif.until(small, "delivered", within=60)
    assert notif.one("SELECT count(*) FROM core.outbox") > 1_000


def test_a_graceful_stop_spends_no_attempt_and_loses_nothing(notif: Installation) -> None:
    notif.relay()
    jobs = notif.send_many(400)
    for _ in range(3):  # three deploys
        worker = notif.worker()
        count = len(notif.mails())
        eventually(lambda n=count: len(notif.mails()) > n + 20)  # type: ignore[misc]
        assert worker.stop() == 0
    notif.worker()
    notif.until_empty()
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(str(job) for job in jobs)
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]


def test_publishing_goes_on_while_redis_is_away(notif: Installation) -> None:
    valkey = notif.servers.valkey
    if valkey is None:
        pytest.skip("needs a Redis of our own to stop")
    notif.relay()
    notif.worker()
    notif.until(notif.send(), "delivered")
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            jobs = list(pool.map(lambda _: notif.send(), range(40)))
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    for job in jobs:
        notif.until(job, "delivered", within=60)
    assert len(notif.mails()) == 41


def test_dramatiqs_own_command_line(notif: Installation) -> None:
    notif.relay()
    worker = notif.process("-m", "dramatiq", "workers.transactional", "--processes", "1", "--threads", "4")
    job = notif.send()
    notif.until(job, "delivered")
    assert worker.stop() == 0
