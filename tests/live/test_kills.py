"""`kill -9` of a real worker at each moment of a job's way: one mail each; attempts 1, 2, 2, 1.

The moments are held open from outside: by a trigger that waits for an advisory lock, by the sandbox, by stopping Valkey.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.kit import Installation, eventually

LOCK = 4711
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"


@contextmanager
def held(notif: Installation, when: str) -> Iterator[None]:
    """Every statement that does `when` (a trigger's head) to the outbox waits until the end of the block."""
    notif.admin(
        f"CREATE OR REPLACE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN NEW; END $$;"
        f"GRANT EXECUTE ON FUNCTION public.hold() TO notif_owner;"
        f"CREATE TRIGGER hold {when} EXECUTE FUNCTION public.hold()"
    )
    with psycopg.connect(notif.servers.admin(notif.database), autocommit=True) as connection:
        connection.execute(f"SELECT pg_advisory_lock({LOCK})".encode())
        try:
            yield
        finally:
            connection.execute(f"SELECT pg_advisory_unlock({LOCK})".encode())
    notif.admin("DROP TRIGGER hold ON core.outbox")


def until_held(notif: Installation) -> None:
    eventually(lambda: notif.admin(WAITING), what="a statement is held")


def cut(notif: Installation) -> None:
    """End the held statement uncommitted, as when the killed client's host is gone."""
    notif.admin(WAITING.replace("SELECT pid", "SELECT pg_terminate_backend(pid)"))
    eventually(lambda: not notif.admin(WAITING), what="the held statement has ended")


def attempts(notif: Installation, job: object) -> int:
    found: int = notif.one("SELECT attempts FROM core.delivery WHERE job_id = %s AND verdict = 'delivered'", job)
    return found


@pytest.fixture
def running(notif: Installation) -> Installation:
    notif.relay()
    return notif


def test_killed_before_the_claim(running: Installation) -> None:
    worker = running.worker()
    with held(
        running, "BEFORE UPDATE ON core.outbox FOR EACH ROW WHEN (NEW.state = 'claimed' AND OLD.state = 'pushed')"
    ):
        job = running.send()
        until_held(running)
        worker.kill()
        cut(running)
    running.worker()
    running.until(job, "delivered", within=60)
    assert (len(running.mails_of(job)), attempts(running, job)) == (1, 1)


def test_killed_between_claim_and_call(running: Installation) -> None:
    worker = running.worker()
    with held(
        running, "BEFORE UPDATE ON core.outbox FOR EACH ROW WHEN (NEW.request IS NOT NULL AND OLD.request IS NULL)"
    ):
        job = running.send()
        until_held(running)
        worker.kill()
        cut(running)
    assert running.sandbox.requests() == []
    running.worker()
    running.until(job, "delivered", within=60)
    assert (len(running.mails_of(job)), attempts(running, job)) == (1, 2)


def test_killed_between_call_and_settle(running: Installation) -> None:
    worker = running.worker()
    with held(running, "BEFORE DELETE ON core.outbox FOR EACH ROW"):
        job = running.send()
        until_held(running)
        assert len(running.mails_of(job)) == 1
        worker.kill()
        cut(running)
    running.worker()
    running.until(job, "delivered", within=60)
    assert (len(running.mails_of(job)), attempts(running, job)) == (1, 2)
    assert len({request["body_hash"] for request in running.sandbox.requests()}) == 1


def test_killed_after_settle_before_ack(running: Installation) -> None:
    valkey = running.servers.valkey
    if valkey is None:
        pytest.skip("needs a Redis of our own to stop")
    worker = running.worker()
    running.sandbox.faults([{"fault": "hold"}])
    job = running.send()
    running.sandbox.wait_for_held()
    os.kill(valkey.pid, signal.SIGSTOP)  # from here on no ack gets through
    try:
        running.sandbox.release()
        running.until(job, "delivered")
        worker.kill()
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    running.worker()
    again = running.send()
    running.until(again, "delivered", within=60)
    assert (len(running.mails_of(job)), attempts(running, job)) == (1, 1)


def test_a_job_that_kills_its_worker_is_given_up_on_after_five_attempts(loyalty: Installation) -> None:
    """Its attempts are counted in an earlier commit than its work, so that dying does not take the count along."""
    loyalty.relay()
    job = loyalty.envelope("points.earned", points=5, answer="die")
    loyalty.app.queue.publish("loyalty", job)
    for nth in range(1, 6):
        worker = loyalty.worker("loyalty")
        eventually(lambda w=worker: not w.alive, within=60, what="the job has killed its worker")  # type: ignore[misc]
        assert loyalty.one("SELECT attempts FROM core.outbox") == nth
        loyalty.rows("UPDATE core.outbox SET due_at = now() WHERE state = 'claimed'")  # its lease, run out
    loyalty.until(job.job_id, "dead", queue="loyalty")
    assert loyalty.rows("SELECT cause, outcome, attempts FROM core.dead_letters") == [("worker_lost", "failed", 5)]
    assert loyalty.admin("SELECT * FROM public.loyalty") == []
