"""The relay: nothing is lost between Postgres and Redis, whichever of them fails, and nothing is pushed twice as one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg

from notif.relay import AWAY_WAIT, EPOCH_CHECK, POLL, SWEEP, Relay
from tests.kit import Installation
from tests.spine.hands import Hands
from tests.spine.relays import Clock, Counting, Leaky, Made, on_redis


def test_a_lost_push_is_pushed_again_as_the_next_generation(notif: Installation, made: Made, carrier: Leaky) -> None:
    job = notif.send()
    relay = made()
    carrier.lost = 1
    assert relay.poll() == AWAY_WAIT
    first = notif.one("SELECT generation FROM core.outbox")
    assert notif.one("SELECT due_at <= now() FROM core.outbox") is True  # not in 20 s
    assert relay.poll() == POLL
    assert on_redis(notif) == [f"{job}:{first + 1}"]
    assert carrier.pushed[-1].generation == first + 1


def test_while_redis_is_away_the_outbox_waits(notif: Installation, made: Made, carrier: Leaky) -> None:
    jobs = notif.send_many(3)
    relay = made()
    carrier.lost = 4
    assert [relay.poll() for _ in range(4)] == [AWAY_WAIT] * 4
    relay.poll()
    assert sorted(identifier.split(":")[0] for identifier in on_redis(notif)) == sorted(str(job) for job in jobs)


def test_what_another_relay_had_committed_is_looked_at_by_the_next(
    notif: Installation, made: Made, hands: Hands
) -> None:
    """A relay died between its commit and its push: the one that starts then doesn't wait for 20 s."""
    notif.send()
    (ref,) = hands.pick()  # and then it died
    made().poll()
    assert on_redis(notif) == [f"{ref.job_id}:{ref.generation + 1}"]


def test_a_wiped_redis_is_noticed_within_an_epoch_check(notif: Installation, made: Made, clock: Clock) -> None:
    job = notif.send()
    relay = made()
    relay.poll()
    relay.poll()
    (before,) = on_redis(notif)
    notif.redis.flushdb()
    relay.poll()
    assert on_redis(notif) == []  # looked a moment ago
    clock.now += EPOCH_CHECK
    assert relay.poll() == POLL
    assert relay.poll() == POLL
    (after,) = on_redis(notif)
    assert (after.split(":")[0], after != before) == (str(job), True)


def test_a_wiped_redis_is_noticed_by_the_next_push(notif: Installation, made: Made) -> None:
    jobs = [notif.send()]
    relay = made()
    relay.poll()
    notif.redis.flushdb()
    jobs.append(notif.send())
    relay.poll()
    relay.poll()
    assert sorted({identifier.split(":")[0] for identifier in on_redis(notif)}) == sorted(str(job) for job in jobs)


def test_a_wipe_is_every_queues(notif: Installation, made: Made, hands: Hands, clock: Clock) -> None:
    """The epoch is set again by whoever notices: it speaks for the queues of all relays."""
    notif.send("order.placed", **notif.envelope().data, points=1)
    mail, product = made(), made(None, "loyalty")
    for relay in (mail, product, mail, product):
        relay.poll()
    notif.redis.flushdb()
    clock.now += EPOCH_CHECK
    for relay in (mail, mail, product):
        relay.poll()
    assert (len(on_redis(notif)), len(on_redis(notif, "loyalty"))) == (1, 1)


def test_a_publishers_long_transaction_is_found_by_the_sweep(
    notif: Installation, made: Made, clock: Clock, outbox: Counting
) -> None:
    """Committed now, due a minute ago: older than everything the watermark looks at."""
    notif.send()
    relay = made()
    relay.poll()
    late = notif.send()
    notif.rows("UPDATE core.outbox SET due_at = now() - interval '1 minute' WHERE job_id = %s", late)
    relay.poll()
    clock.now += SWEEP - 1
    relay.poll()
    assert (len(on_redis(notif)), outbox.sweeps) == (1, 1)
    clock.now += 1
    relay.poll()
    assert (len(on_redis(notif)), outbox.sweeps) == (2, 2)


def test_a_publishers_transaction_of_less_than_that_is_found_by_the_next_poll(notif: Installation, made: Made) -> None:
    notif.send()
    relay = made()
    relay.poll()
    late = notif.send()
    notif.rows("UPDATE core.outbox SET due_at = now() - interval '28 s' WHERE job_id = %s", late)
    relay.poll()
    assert len(on_redis(notif)) == 2


def test_a_clock_that_has_gone_back_holds_up_nothing_new(notif: Installation, made: Made, outbox: Counting) -> None:
    """The watermark is of a time that is still to come: what is published now must not wait for the next sweep."""
    outbox.ahead = timedelta(hours=1)
    relay = made()
    relay.poll()
    job = notif.send()
    relay.poll()
    assert outbox.sweeps == 1
    assert [identifier.split(":")[0] for identifier in on_redis(notif)] == [str(job)]


def test_a_row_that_somebody_holds_is_passed_over(notif: Installation, made: Made) -> None:
    """A settle that takes its time holds up its own row, and no other."""
    held, free = notif.send(), notif.send()
    relay = made()
    with ThreadPoolExecutor(1) as pool, psycopg.connect(notif.servers.url("notif_owner", notif.database)) as settling:
        settling.execute("SELECT FROM core.outbox WHERE job_id = %s FOR UPDATE", (held,))
        assert pool.submit(relay.poll).result(10) == POLL
        assert [identifier.split(":")[0] for identifier in on_redis(notif)] == [str(free)]
    relay.poll()
    assert len(on_redis(notif)) == 2


def test_two_relays_at_once_never_push_a_row_twice_at_one_generation(
    notif: Installation, made: Made, hands: Hands, carrier: Leaky
) -> None:
    notif.send_many(120)
    relays, gate = [made(None), made(None)], threading.Barrier(2)
    for relay in relays:
        relay.poll()
    notif.rows("UPDATE core.outbox SET due_at = now()")

    def drive(relay: Relay) -> None:
        gate.wait(10)
        with psycopg.connect(notif.servers.url("notif_owner", notif.database), autocommit=True) as workers:
            for _ in range(12):
                relay.poll()
                workers.execute("DELETE FROM core.outbox WHERE state = 'pushed'")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(drive, relays))
    pushed = [(ref.job_id, ref.generation) for ref in carrier.pushed]
    assert len(pushed) == len(set(pushed))
    assert len({job for job, _ in pushed}) == 120
