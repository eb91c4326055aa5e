"""Deploys, killed and frozen processes: attempts are kept, what was held comes back, nothing is doubled."""

import os
import signal
import threading

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from notif.adapters.postgres.database import driver_url
from notif.adapters.redis_carrier import SILENCE
from notif.bootstrap.relay import relays
from notif.bootstrap.worker import REAP
from tests.kit import EMAIL, Installation, eventually
from tests.reports.living import Living
from tests.reports.ways import copies, held_by, passed, relay_of, silent, waiting
from tests.spine.hands import Hands
from tests.spine.relays import on_redis


def test_b05_five_deploys_cost_no_attempt(notif: Installation, living: Living) -> None:
    """One call under way and the next job fetched, each time the worker is told to stop."""
    hands = Hands(notif)
    for nth in range(1, 6):
        notif.sandbox.faults([{"fault": "hold"}])
        started = notif.send()
        if nth == 1:
            waits = notif.send(tenant=notif.add_tenant("Other"))
        hands.push()
        worker = living.worker(threads=1)
        notif.sandbox.wait_for_held()
        eventually(lambda w=worker: held_by(notif, w.broker.broker_id) == 2, what="both are fetched")  # type: ignore[misc]
        stopping = threading.Thread(target=living.stop)
        stopping.start()
        eventually(lambda w=worker: w.broker.draining, what="it drains")  # type: ignore[misc]
        notif.sandbox.release()
        stopping.join(20)
        done = {notif.state(started), notif.state(waits)}
        assert done == {"delivered", "pushed"}
        started, waits = (started, waits) if notif.state(waits) == "pushed" else (waits, started)
        assert [identifier.split(":")[0] for identifier in on_redis(notif)] == [str(waits)]
    assert waiting(notif) == [("pushed", 0)]
    hands.close()
    assert notif.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]
    assert notif.one("SELECT count(*) FROM core.dead_letters") == 0


def test_b06_after_five_deliveries_without_an_outcome_there_is_no_sixth(notif: Installation, hands: Hands) -> None:
    """The count is in Postgres, an earlier commit than the work; a process really killed is tests/live/test_kills.py."""
    notif.send()
    for nth in range(1, 6):
        (ref,) = hands.pick()
        hands.ledger.claim(ref, hands.terms(), None)
        assert waiting(notif) == [("claimed", nth)]
        passed(notif, hands, 7)
    assert (hands.pick(), waiting(notif)) == ([], [])
    assert notif.rows("SELECT cause, outcome, attempts FROM core.dead_letters") == [("worker_lost", "failed", 5)]


def test_b08_one_of_two_children_is_killed(notif: Installation, living: Living) -> None:
    """Dramatiq's own command line ends with an error, so that a supervisor starts it anew; the call under way is repeated."""
    living.relay()
    main = notif.process("-m", "dramatiq", "workers.transactional", "--processes", "2", "--threads", "1")
    pids = "SELECT pid FROM core.process WHERE role = 'worker'"
    eventually(lambda: len(notif.rows(pids)) == 2, within=90, what="two children")
    try:
        notif.sandbox.faults([{"fault": "hold"}])
        job = notif.send()
        notif.sandbox.wait_for_held()
    finally:  # without a child killed they would outlive the test
        os.kill(notif.one(pids), signal.SIGKILL)
    eventually(lambda: not main.alive, within=60, what="the command has ended")
    assert main.stop() != 0
    notif.worker()
    notif.until(job, "delivered")
    assert len(notif.mails_of(job)) == 1


def test_b10_every_thread_lives_after_calls_that_hang(notif: Installation, living: Living) -> None:
    """Nothing interrupts a call but its own deadline, here a second; 24 of them on eight threads."""
    living.relay()
    living.worker(threads=8)
    threads = list(living.threads)
    assert len(threads) == 9
    notif.sandbox.faults([{"fault": "hang", "times": 24}])
    jobs = notif.send_many(24)

    def goes_on() -> None:  # whatever the circuit has to say of such a provider
        notif.rows("DELETE FROM core.provider_state")
        notif.rows("UPDATE core.outbox SET due_at = now(), attempts = 0 WHERE state IN ('retrying', 'ready')")

    def hung() -> bool:
        goes_on()
        return [request["fault"] for request in notif.sandbox.requests()].count("hang") == 24

    def done() -> bool:
        goes_on()
        return not waiting(notif)

    eventually(hung, within=60, what="24 calls have hung")
    eventually(done, within=60, what="all are delivered")
    assert list(living.threads) == threads
    assert all(thread.is_alive() for thread in threads)
    assert sorted(mail["tags"]["job"] for mail in notif.mails()) == sorted(map(str, jobs))


def test_b39_a_killed_workers_job_waits_for_a_lease_not_for_its_longest_run(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.pick()
    hands.ledger.claim(ref, hands.terms(), None)
    lease = hands.terms().lease
    assert hands.app.kinds.get("order.shipped").max_runtime > lease
    assert notif.one("SELECT due_at - core.clock() BETWEEN interval '1 s' AND %s FROM core.outbox", lease) is True
    passed(notif, hands, lease.total_seconds() + 1)
    assert hands.turn() == ["delivered"]


def test_b43_what_a_killed_process_held_comes_back_on_a_silent_queue(notif: Installation, hands: Hands) -> None:
    """Nothing else arrives: the reaper needs no traffic."""
    notif.send()
    (ref,) = hands.push()
    killed, living = hands.worker.broker, Hands(notif, hands.provider)
    assert len(killed.acks.fetch(EMAIL, 16)) == 1
    reaper = living.worker.broker
    reaper.reap()
    assert on_redis(notif) == []  # not while it may be alive
    silent(notif, killed.broker_id)
    reaper.reap()
    assert held_by(notif, killed.broker_id) == 0
    assert [name for name, _ in reaper.acks.fetch(EMAIL, 16)] == [f"{ref.job_id}:{ref.generation}".encode()]
    assert SILENCE + REAP < 15
    living.close()


def test_b44_a_slot_and_its_job_are_one_transaction(loyalty: Installation, hands: Hands) -> None:
    """A crash between the two leaves neither: the next run finds the slot free."""
    notif = loyalty
    notif.admin("GRANT notif_publisher TO notif_worker; GRANT DELETE ON public.loyalty TO notif_worker")
    engine = create_engine(driver_url(notif.servers.url("notif_worker", notif.database)), poolclass=NullPool)
    slot = notif.envelope()
    take = text("INSERT INTO public.loyalty VALUES (:tenant, :job, 0)")
    try:
        for crash in (True, False):
            with Session(engine) as session:
                session.execute(take, {"tenant": slot.tenant_id, "job": slot.job_id})
                notif.app.queue.publish(EMAIL, slot, session=session)
                if crash:
                    session.connection().invalidate()
                    continue
                session.commit()
    finally:
        notif.admin("REVOKE notif_publisher FROM notif_worker")
    assert len(notif.admin("SELECT * FROM public.loyalty")) == 1
    assert hands.turn() == ["delivered"]


def test_b45_no_lock_of_a_dead_process_keeps_a_lost_job(notif: Installation, hands: Hands) -> None:
    """The worker is dead; so is the relay that was about to take its job back, in the middle of it."""
    lost, other = notif.send(), notif.send()
    for ref in hands.pick():
        hands.ledger.claim(ref, hands.terms(), None)
    passed(notif, hands, 7)
    with psycopg.connect(notif.servers.url("notif_maintenance", notif.database)) as frozen:
        frozen.execute("SELECT FROM core.outbox WHERE job_id = %s FOR UPDATE", (lost,))
        assert [ref.job_id for ref in hands.pick()] == [other]  # a living relay passes it over and waits for nobody
        notif.admin(f"SELECT pg_terminate_backend({frozen.info.backend_pid})")
        eventually(lambda: hands.turn() == ["delivered"], within=5, what="it is free")
        frozen.close()
    assert notif.state(lost) == "delivered"


def test_b49_a_call_that_fails_while_its_worker_stops_leaves_one_attempt(notif: Installation, living: Living) -> None:
    hands = Hands(notif)
    job = notif.send()
    hands.push()
    hands.close()
    notif.sandbox.faults([{"fault": "hang"}])  # ends at its deadline, within the drain
    living.worker()
    notif.sandbox.wait_for_requests(1)
    living.stop()
    assert waiting(notif) == [("retrying", 1)]
    assert on_redis(notif) == []
    notif.due()
    hands = Hands(notif)
    assert [ref.job_id for ref in hands.pick()] == [job]  # one future attempt, and no other
    hands.close()


def test_b54_recovering_a_crowd_holds_up_no_new_job(notif: Installation, hands: Hands) -> None:
    """1,500 claims of dead workers, half of them without an attempt left, and then one job of another tenant."""
    notif.send()
    copies(
        notif,
        1_499,
        state="'claimed'",
        due_at="now() - interval '1 s'",
        attempts="1",
        claimed_at="now() - interval '9 s'",
    )
    spent = "SELECT count(*) FROM core.outbox WHERE attempts = 5"
    notif.rows("UPDATE core.outbox SET attempts = 5 WHERE job_id < '80000000-0000-0000-0000-000000000000'")
    crowd = notif.one(spent)
    new = notif.send(tenant=notif.add_tenant("Other"))
    relay = relay_of(hands)
    relay.poll()
    assert notif.state(new) == "pushed"
    assert (notif.one("SELECT count(*) FROM core.dead_letters"), notif.one(spent)) == (
        500,
        crowd - 500,
    )  # a turn is no longer
    for _ in range(crowd // 500):
        hands.pick()
    assert notif.one("SELECT count(*) FROM core.dead_letters WHERE cause = 'worker_lost'") == crowd
    assert notif.one(spent) == 0


def test_b70_a_batch_that_was_read_and_not_sent_is_not_skipped(notif: Installation, hands: Hands) -> None:
    """The relay has raised thirty rows and died; ten of them were under way in a worker that died as well."""
    notif.send_many(30)
    batch = hands.pick()
    for ref in batch[:10]:
        hands.ledger.claim(ref, hands.terms(), None)
    assert notif.one("SELECT count(*) FROM core.outbox") == len(batch) == 30  # nothing counts as done
    passed(notif, hands, 21)
    for _ in range(3):
        hands.turn()
    assert len({mail["tags"]["job"] for mail in notif.mails()}) == len(notif.mails()) == 30
    assert notif.rows("SELECT verdict, count(*)::int FROM core.delivery GROUP BY 1") == [("delivered", 30)]


def test_b56_a_lost_claim_is_found_on_every_queue(notif: Installation, hands: Hands) -> None:
    """Those that nobody uses too: the relay's loops, as the process has them."""
    notif.send()
    queues = hands.app.config.queue_names
    for queue in queues:
        notif.rows(
            "INSERT INTO core.outbox SELECT (jsonb_populate_record(o, jsonb_build_object('job_id', gen_random_uuid(), 'queue',"
            " %s::text, 'state', 'claimed', 'due_at', now() - interval '91 days'))).* FROM core.outbox o WHERE state = 'ready'",
            queue,
        )
    stuck = "SELECT count(*) FROM core.outbox WHERE state = 'claimed' AND due_at < now() - interval '5 minutes'"
    assert notif.one(stuck) == len(queues)
    for relay in relays(hands.app):
        relay.poll()
    assert notif.one(stuck) == 0
