"""What stands still is told: a relay that lags, a queue that nobody reads, a snapshot that somebody holds."""

from typing import Any

import psycopg

from notif.adapters.postgres.incidents import STALLED, PostgresIncidents
from notif.closings import throttle
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands


def ago(notif: Installation, seconds: int) -> None:
    notif.rows(
        "UPDATE core.outbox SET due_at = due_at - %s * interval '1 s', ready_at = ready_at - %s * interval '1 s'",
        seconds,
        seconds,
    )


def told(notif: Installation) -> dict[str, str]:
    """Key → detail of what is taken now, and forgotten at once."""
    found = {incident.alert.key: incident.alert.detail for incident in notif.app.incidents.take()}
    notif.rows("DELETE FROM core.incident")
    return found


def test_a_relay_that_lags_is_an_alert(notif: Installation, hands: Hands) -> None:
    notif.app.processes.beat("worker", EMAIL)
    notif.send_many(3)
    ago(notif, 29)
    assert told(notif) == {}
    ago(notif, 2)
    assert "relays seen: 0" in told(notif)[f"relay:{EMAIL}"]
    notif.app.processes.beat("relay", "all")
    assert "relays seen: 1" in told(notif)[f"relay:{EMAIL}"]
    assert len(hands.pick()) == 3
    assert told(notif) == {}


def test_a_backlog_before_a_full_window_or_a_closed_provider_is_no_lag(notif: Installation, hands: Hands) -> None:
    notif.app.processes.beat("worker", EMAIL)
    notif.send_many(9)
    ago(notif, 3600)
    assert len(hands.pick(window=4)) == 4
    assert told(notif) == {}
    notif.rows("DELETE FROM core.outbox WHERE state = 'pushed'")
    assert list(told(notif)) == [f"relay:{EMAIL}"]
    notif.app.closings.close(throttle("resend", "rate_limit_exceeded", 60.0, 60.0))
    assert told(notif) == {}


def test_a_queue_without_a_worker_is_an_alert(notif: Installation, hands: Hands) -> None:
    notif.send_many(2)
    assert len(hands.pick()) == 2
    assert told(notif) == {}
    ago(notif, 31)
    assert list(told(notif)) == [f"workers:{EMAIL}"]
    notif.app.processes.beat("worker", f"other {EMAIL}")
    assert told(notif) == {}
    notif.rows("UPDATE core.process SET seen_at = now() - interval '16 s'")
    assert list(told(notif)) == [f"workers:{EMAIL}"]


def test_rows_of_a_queue_that_left_the_configuration_are_an_alert(notif: Installation, hands: Hands) -> None:
    """Relays and workers ask for the queues they know; these rows would wait for ever, and no other alert looks at them."""
    notif.app.processes.beat("worker", f"{EMAIL} loyalty")
    notif.send_many(3)
    assert len(hands.pick(window=1)) == 1
    notif.send("points.earned", points=1)
    ago(notif, 29)
    notif.rows(
        "UPDATE core.outbox SET queue = CASE state WHEN 'pushed' THEN 'old.pushed' ELSE 'old' END WHERE queue = %s",
        EMAIL,
    )
    notif.rows("UPDATE core.outbox SET due_at = now() + interval '1 h' WHERE queue = 'loyalty'")
    # What is pushed comes due 20 s later.
    notif.rows("UPDATE core.outbox SET due_at = due_at - interval '20 s' WHERE queue = 'old.pushed'")
    assert told(notif) == {}
    ago(notif, 2)
    found = told(notif)
    assert sorted(found) == ["unknown_queue:old", "unknown_queue:old.pushed"]
    assert "read by nobody" in found["unknown_queue:old"]
    notif.rows("UPDATE core.outbox SET due_at = now() + interval '1 h' WHERE queue = 'old'")
    assert list(told(notif)) == ["unknown_queue:old.pushed"]
    notif.rows("DELETE FROM core.outbox WHERE queue = 'old.pushed'")
    assert told(notif) == {}


def test_many_rows_on_few_queues_are_looked_through_by_their_indexes(notif: Installation) -> None:
    notif.send()
    notif.rows(
        "INSERT INTO core.outbox SELECT (jsonb_populate_record(o, jsonb_build_object('job_id', gen_random_uuid(), 'queue',"
        " 'old' || n % 3))).* FROM core.outbox o, generate_series(1, 3000) n"
    )
    notif.rows("ANALYZE core.outbox")
    with psycopg.connect(notif.servers.url("notif_maintenance", notif.database)) as connection:
        queues = [EMAIL]
        rows = connection.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {STALLED}".encode(), (queues, ["resend"], queues, queues, 300.0)
        ).fetchone()
    assert rows
    assert read(rows[0][0]["Plan"]) < 100


def read(plan: dict[str, Any]) -> float:
    """How many rows of the outbox were read."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == "outbox" else 0
    return float(own + plan.get("Rows Removed by Filter", 0) + sum(read(child) for child in plan.get("Plans", [])))


def test_an_old_snapshot_is_an_alert(notif: Installation) -> None:
    """It is what slows every poll, and nobody else would know whose it is."""
    incidents = PostgresIncidents(notif.app.maintenance, {}, old_snapshot=0.0)
    with psycopg.connect(notif.servers.admin(notif.database), application_name="forgotten") as somebody:
        somebody.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        somebody.execute("SELECT 1")
        (incident,) = incidents.take()
        assert (incident.alert.key, "forgotten" in incident.alert.detail) == ("snapshot", True)
        assert "snapshot" not in told(notif)  # five minutes
