"""The relay: a bounded window, and in turn by tenant."""

import uuid
from datetime import UTC, datetime

import pytest

from notif.relay import FULL_WAIT, POLL
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands
from tests.spine.relays import Clock, Counting, Leaky, Made, on_redis, settled, tenants_on_redis

# ---- the window


def test_half_a_second_of_work_is_out_and_no_more(notif: Installation, made: Made, clock: Clock) -> None:
    notif.send_many(20)
    relay = made(rate=10)
    for _ in range(3):
        assert relay.poll() == POLL
        clock.now += FULL_WAIT
    assert len(on_redis(notif)) == 5
    settled(notif, 2)
    relay.poll()
    assert len(on_redis(notif)) == 5
    assert notif.rows("SELECT state, count(*)::int FROM core.outbox GROUP BY 1 ORDER BY 1") == [
        ("pushed", 5),
        ("ready", 13),
    ]


def test_a_full_window_is_looked_at_again_before_it_can_be_empty(
    notif: Installation, made: Made, outbox: Counting, clock: Clock
) -> None:
    notif.send_many(20)
    relay = made(rate=10)
    relay.poll()
    settled(notif, 5)
    for _ in range(3):
        relay.poll()
    assert (outbox.picks, len(on_redis(notif))) == (1, 0)
    clock.now += FULL_WAIT
    relay.poll()
    assert (outbox.picks, len(on_redis(notif))) == (2, 5)


@pytest.mark.parametrize(("rate", "window"), [(2, 4), (8, 4), (9.9, 4), (40, 20), (None, 16)])
def test_the_window_is_at_least_four_and_without_a_provider_sixteen(
    notif: Installation, made: Made, rate: float | None, window: int
) -> None:
    notif.send_many(30)
    relay = made(rate)
    for _ in range(3):
        relay.poll()
    assert len(on_redis(notif)) == window


def test_without_a_provider_the_window_follows_what_was_done_in_the_last_second(
    notif: Installation, made: Made, clock: Clock
) -> None:
    notif.send_many(400)
    relay = made(None)
    relay.poll()
    for _ in range(3):
        settled(notif, len(on_redis(notif)))
        relay.poll()
    assert len(on_redis(notif)) > 16
    clock.now += 1.1
    settled(notif, len(on_redis(notif)))
    relay.poll()
    assert len(on_redis(notif)) == 16


def test_what_a_worker_has_claimed_leaves_the_window(
    notif: Installation, made: Made, hands: Hands, carrier: Leaky, clock: Clock
) -> None:
    notif.send_many(9)
    relay = made(rate=10)
    relay.poll()
    for ref in carrier.pushed[:2]:
        hands.ledger.claim(ref, hands.terms(), b"{}")
    clock.now += FULL_WAIT
    relay.poll()
    assert len(carrier.pushed) == 7


# ---- in turn


def test_one_tenant_has_half_the_window_while_another_has_something_due(
    notif: Installation, made: Made, clock: Clock
) -> None:
    flood, other = notif.tenant, notif.add_tenant("Other")
    notif.send_many(50, tenant=flood)
    relay = made(rate=20)
    relay.poll()
    assert len(on_redis(notif)) == 10  # nobody else is there: the whole window
    settled(notif, 10)
    notif.send_many(2, tenant=other)
    clock.now += FULL_WAIT
    relay.poll()
    found = tenants_on_redis(notif)
    assert (found.count(flood), found.count(other)) == (5, 2)
    assert found[1::2][:2] == [other, other] or found[::2][:2] == [other, other]  # one by one, not after the flood


def test_tenants_take_turns_and_the_next_poll_goes_on_where_the_last_ended(
    notif: Installation, made: Made, clock: Clock
) -> None:
    tenants = sorted([notif.tenant, *(notif.add_tenant(str(n)) for n in range(5))])
    for tenant in tenants:
        notif.send_many(4, tenant=tenant)
    relay = made(rate=8)  # a window of four, for six tenants
    order: list[uuid.UUID] = []
    for _ in range(6):
        relay.poll()
        order += tenants_on_redis(notif)
        settled(notif, 4)
        clock.now += FULL_WAIT
    assert order == tenants * 4


def test_within_a_tenant_the_oldest_first(notif: Installation, made: Made) -> None:
    jobs = [notif.send() for _ in range(6)]
    made().poll()
    assert [identifier.split(":")[0] for identifier in on_redis(notif)] == [str(job) for job in jobs]


def test_a_backlog_for_next_week_holds_up_nobody(notif: Installation, made: Made) -> None:
    """What is scheduled is neither counted nor in the way, of its own tenant or of another."""
    other = notif.add_tenant("Other")
    week = datetime(2035, 1, 1, tzinfo=UTC)
    for tenant in (notif.tenant, other):
        notif.app.queue.schedule(EMAIL, notif.envelope(tenant=tenant), week)
    notif.rows(
        "INSERT INTO core.outbox SELECT (jsonb_populate_record(o, jsonb_build_object('job_id', gen_random_uuid()))).* "
        "FROM core.outbox o, generate_series(1, 300)"
    )
    now = [notif.send(), notif.send(tenant=other)]
    relay = made(rate=10)
    relay.poll()
    relay.poll()
    assert {identifier.split(":")[0] for identifier in on_redis(notif)} == {str(job) for job in now}


def test_what_is_due_later_is_pushed_when_it_is_due(notif: Installation, made: Made) -> None:
    notif.app.queue.schedule(EMAIL, notif.envelope(), datetime(2035, 1, 1, tzinfo=UTC))
    relay = made()
    relay.poll()
    assert on_redis(notif) == []
    notif.due()
    relay.poll()
    assert len(on_redis(notif)) == 1
