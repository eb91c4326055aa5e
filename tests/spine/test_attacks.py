"""What an attack on the core found once: each stays mended."""

import io
import json
import uuid
from typing import Any

import psycopg
import pytest

from notif.bootstrap.log import make_log
from notif.closings import quota
from notif.config import Delivery
from notif.errors import Unavailable
from notif.leases import Leases
from notif.ports import Gated, Reference, Settlement
from notif.relay import Relay, Route
from notif.verdict import Accepted, Answer, Invalid, NotReached, Unclear
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands


class Says:
    """The real provider, whose answer is put into its mouth."""

    def __init__(self, real: Any, answer: Answer) -> None:
        self._real, self._answer = real, answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, request: bytes, key: str, deadline: float) -> Answer:
        return self._answer


@pytest.mark.parametrize("kind", ["email.message", "order.shipped"])
def test_a_restored_dump_does_not_write_to_real_people(notif: Installation, hands: Hands, kind: str) -> None:
    notif.send(kind)
    real = hands.provider
    hands.provider = Says(real, NotReached("refused"))
    assert hands.turn() == ["ready"]  # frozen, under the configuration of production
    hands.provider = real
    hands.app.composer._delivery = Delivery.model_validate(
        {"only": ["staging.test"], "redirect_to": "dev@staging.test"}
    )
    notif.due()
    assert hands.turn() == ["suppressed"]
    assert notif.sandbox.requests() == []


def test_what_a_closing_deferred_is_looked_at_again_within_a_minute(notif: Installation, hands: Hands) -> None:
    notif.send()
    refs = hands.pick()
    hands.closings.close(quota("resend", "monthly quota", 20 * 86_400))
    assert [hands.handle(ref) for ref in refs] == ["ready"]
    assert notif.one("SELECT due_at - now() < interval '61 s' FROM core.outbox") is True


def test_a_surprise_in_the_database_logs_no_recipient(notif: Installation, hands: Hands) -> None:
    notif.send("email.message", to="secret.person@example.test", text="private-body")
    out = io.StringIO()
    hands.app.log = make_log(out)
    notif.admin("ALTER TABLE core.outbox ADD CONSTRAINT surprise CHECK (state <> 'claimed')")
    try:
        assert hands.turn() == ["error"]
    finally:
        notif.admin("ALTER TABLE core.outbox DROP CONSTRAINT surprise")
    assert "surprise" in out.getvalue()
    assert "secret.person" not in out.getvalue()
    assert "private-body" not in out.getvalue()


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Accepted("id\0x"), "delivered"),
        (Invalid("invalid_parameter", "bad \0 byte"), "dead"),
        (Unclear("503 half a pair \ud800"), "retrying"),
    ],
)
def test_what_a_provider_says_can_be_written_down(
    notif: Installation, hands: Hands, answer: Answer, state: str
) -> None:
    notif.send()
    hands.provider = Says(hands.provider, answer)
    assert hands.turn() == [state]


def test_an_idle_poll_does_not_walk_over_tenants_who_wait_for_later(notif: Installation, hands: Hands) -> None:
    notif.rows(
        "INSERT INTO core.outbox (job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, data, schema_hash,"
        " content_hash, sender_domain, expiry, fence_ttl, resend_unknown, state, generation, due_at, ready_at, expires_at)"
        " SELECT gen_random_uuid(), %s, %s, gen_random_uuid(), gen_random_uuid(), 'c', 'order.shipped', '{}', '', '', '', 'never',"
        " '7 days', false, 'scheduled', n, now() + interval '7 days', now(), 'infinity' FROM generate_series(1, 3000) n",
        EMAIL,
        EMAIL,
    )
    assert hands.pick() == []
    plan = json.dumps(
        notif.rows(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT * FROM core.pick(%s, 'resend', true, 5, 5,"
            " '00000000-0000-0000-0000-000000000000', now() - interval '30 s')",
            EMAIL,
        )[0][0]
    )
    buffers = json.loads(plan)[0]["Plan"]["Shared Hit Blocks"] + json.loads(plan)[0]["Plan"]["Shared Read Blocks"]
    assert buffers < 3_000, "one probe a tenant would be 9,000"


def test_a_halted_domains_backlog_takes_no_place_in_the_window(notif: Installation, hands: Hands) -> None:
    for n in range(5):
        tenant = notif.add_tenant(f"halted {n}")
        notif.send_many(100, "email.message", tenant=tenant, **{"from": "shop@halted.test"})
    good = notif.send("email.message", tenant=notif.add_tenant("good"))
    notif.rows("SELECT core.close_provider('resend', 'halted.test', 'halted', 'not verified', NULL, NULL)")
    relay = relay_of(hands, rate=10)
    for _ in range(3):
        relay.poll()
    assert notif.state(good) == "pushed"
    assert notif.one("SELECT count(*) FROM core.outbox WHERE state = 'halted'") == 500


def relay_of(hands: Hands, *queues: str, rate: float = 1000) -> Relay:
    routes = [Route(hands.terms(queue), rate) for queue in queues or (EMAIL,)]
    everything = hands.app.config.queue_names
    return Relay(hands.outbox, hands.carrier, routes, all_queues=everything, log=hands.app.log, clock=hands.clock)


def test_a_wiped_redis_is_noticed_for_every_lane(notif: Installation, hands: Hands) -> None:
    other = "notif.email.marketing"
    notif.send()
    notif.send("newsletter", **notif.envelope("email.message").data)
    mine, theirs = relay_of(hands), relay_of(hands, other)
    mine.poll()
    theirs.poll()
    notif.redis.flushall()
    hands.clock_offset += 1
    mine.poll()  # it sets the epoch: the other relay will find it intact
    assert (other,) in notif.rows("SELECT queue FROM core.outbox WHERE due_at <= now() + interval '1 s'")
    theirs.poll()
    mine.poll()
    assert set(notif.redis.keys("notif:*.msgs")) == {f"notif:{EMAIL}.msgs".encode(), f"notif:{other}.msgs".encode()}


def test_one_place_left_is_not_the_flooding_tenants(notif: Installation, hands: Hands) -> None:
    """Window 4, two tenants with plenty due: neither has more than half of it out."""
    other = notif.add_tenant("Other")
    notif.send_many(50)
    notif.send_many(50, tenant=other)
    for _ in range(6):
        hands.pick(window=4)
        out = dict(
            notif.rows("SELECT tenant_id, count(*)::int FROM core.outbox WHERE state = 'pushed' GROUP BY tenant_id")
        )
        assert max(out.values()) <= 2
        notif.rows(
            "UPDATE core.outbox SET state = 'retrying', due_at = now() + interval '1 h' WHERE job_id IN "
            "(SELECT job_id FROM core.outbox WHERE state = 'pushed' AND tenant_id = %s LIMIT 1)",
            other,
        )


def test_one_process_may_hold_two_claims_of_a_job(hands: Hands) -> None:
    clock = [0.0]
    leases = Leases(hands.ledger, hands.terms().lease, lambda: clock[0])
    ref = Reference(uuid.uuid4(), EMAIL, uuid.uuid4(), 5)
    lease = hands.terms().lease.total_seconds()
    minute = hands.app.kinds.get("order.shipped").max_runtime
    leases.hold(ref, 6, minute, 0.0)
    clock[0] = lease + 5
    leases.hold(ref, 8, minute, clock[0])
    assert (leases.left(ref, 6), leases.left(ref, 8)) == (-5.0, lease)
    leases.drop(ref, 6)
    assert leases.left(ref, 8) == lease


def test_a_server_that_became_read_only_is_an_outage(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.pick()
    notif.admin(f"ALTER DATABASE {notif.database} SET default_transaction_read_only = on")
    other = Hands(notif, hands.provider)
    try:
        assert isinstance(other.ledger.gate(ref, other.terms()), Gated)
        with pytest.raises(Unavailable):
            other.ledger.settle(ref, ref.generation, other.terms(), Settlement("delivered"))
    finally:
        other.provider = hands.provider
        other.app.close()
        with psycopg.connect(notif.servers.admin_url, autocommit=True) as elsewhere:
            elsewhere.execute(f"ALTER DATABASE {notif.database} RESET default_transaction_read_only".encode())


def test_a_stopping_worker_takes_nothing_more(notif: Installation, hands: Hands) -> None:
    notif.send()
    (ref,) = hands.push()
    broker = hands.worker.broker
    hands.worker.closings.refresh()
    broker.emit_before("worker_shutdown", object())
    assert next(broker.consume(EMAIL, 16, 1000)) is None
    assert notif.redis.llen(f"notif:{EMAIL}") == 1
    assert ref.queue == EMAIL
