"""`core.publish` as another language sees it: plain SQL under the publisher's role, and SQLSTATEs."""

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from notif.envelope import new_job_id
from tests.kit import EMAIL, Installation, eventually
from tests.spine.hands import Hands

Door = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def door(notif: Installation) -> Iterator[Door]:
    with psycopg.connect(notif.servers.url("notif_publisher", notif.database), autocommit=True) as connection:
        yield connection


def job(notif: Installation, **fields: Any) -> dict[str, Any]:
    """A good element, as docs/reference/sql.md shows it."""
    data = {"email": "ann@example.test", "name": "Ann", "order_number": "1042", "carrier": "DHL"}
    return {
        "job_id": str(new_job_id()),
        "queue": EMAIL,
        "consumer": EMAIL,
        "tenant_id": str(notif.tenant),
        "correlation_id": "order-1042",
        "kind": "order.shipped",
        "data": data,
        "schema_hash": "",
        "sender_domain": "mail.acme.test",
        "run_at": None,
        "max_age": "3 days",
        "expiry": "expired",
        "fence_ttl": "7 days",
        "resend_unknown": False,
        **fields,
    }


def publish(door: Door, *jobs: Any) -> int:
    row = door.execute("SELECT core.publish(%s)", (json.dumps(jobs),)).fetchone()
    assert row
    return int(row[0])


def refusal(door: Door, *jobs: Any) -> tuple[str | None, str | None]:
    with pytest.raises(psycopg.Error) as raised:
        publish(door, *jobs)
    return raised.value.sqlstate, raised.value.diag.message_primary


def rows(notif: Installation) -> int:
    return int(notif.one("SELECT count(*) FROM core.outbox"))


def test_a_job_of_another_language_is_delivered(notif: Installation, door: Door, hands: Hands) -> None:
    mine = job(notif)
    assert publish(door, mine) == 1
    assert hands.turn() == ["delivered"]
    assert [mail["tags"]["job"] for mail in notif.mails()] == [mine["job_id"]]
    state = door.execute("SELECT queue, state, attempts FROM core.status(%s)", (mine["job_id"],)).fetchall()
    assert state == [(EMAIL, "delivered", 1)]


def test_the_same_again_is_no_new_row(notif: Installation, door: Door) -> None:
    mine = job(notif)
    assert [publish(door, mine), publish(door, mine), publish(door, mine, job(notif), mine)] == [1, 0, 1]


def test_nothing_is_published_by_an_empty_array(notif: Installation, door: Door) -> None:
    assert publish(door) == 0


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"x": found}
    return found


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "job_id of version 4": ({"job_id": str(uuid.uuid4())}, "job_id: must be a UUID of version 7"),
    "job_id of no variant": (
        {"job_id": "019ad6a2-6c1e-7c3a-0b1f-2f6a5c0d1e2f"},
        "job_id: must be a UUID of version 7",
    ),
    "no job_id": ({"job_id": None}, "job_id: must be a UUID of version 7"),
    "queue": ({"queue": "Notif email"}, "queue and consumer: must be names of at most 80 characters"),
    "long queue": ({"queue": "q" * 81}, "queue and consumer: must be names of at most 80 characters"),
    "no queue": ({"queue": None}, "queue and consumer: must be names of at most 80 characters"),
    "no consumer": ({"consumer": None}, "queue and consumer: must be names of at most 80 characters"),
    "kind": ({"kind": "Order Shipped"}, "kind: must be a name of at most 80 characters"),
    "no kind": ({"kind": None}, "kind: must be a name of at most 80 characters"),
    "correlation_id": ({"correlation_id": "ä"}, "correlation_id: must be 1 to 128 printable ASCII characters"),
    "no correlation_id": ({"correlation_id": None}, "correlation_id: must be 1 to 128 printable ASCII characters"),
    "data": ({"data": ["Ann"]}, "data: must be an object"),
    "no data": ({"data": None}, "data: must be an object"),
    "data beyond what Python reads": ({"data": nested(255)}, "data: is nested deeper than 254 levels"),
    "run_at": ({"run_at": "2099-01-01T00:00:00Z"}, "run_at: is more than ten years ahead"),
    "run_at for ever": ({"run_at": "infinity"}, "run_at: has no offset from UTC"),
    "run_at without an offset": ({"run_at": "2027-01-01T00:00:00"}, "run_at: has no offset from UTC"),
    "expiry": ({"expiry": "someday"}, "expiry: must be expired, too_late or never"),
    "no fence_ttl": (
        {"fence_ttl": None},
        "schema_hash, sender_domain, fence_ttl, resend_unknown: one is missing or too long",
    ),
    "no resend_unknown": (
        {"resend_unknown": None},
        "schema_hash, sender_domain, fence_ttl, resend_unknown: one is missing or too long",
    ),
}


def test_a_bad_field_is_named_and_nothing_is_published(notif: Installation, door: Door) -> None:
    answers = {name: refusal(door, job(notif), job(notif, **fields), job(notif)) for name, (fields, _) in BAD.items()}
    assert answers == {name: ("NT003", message) for name, (_, message) in BAD.items()}
    assert rows(notif) == 0


@pytest.mark.parametrize("jobs", ["{}", "null", "7", None])
def test_what_is_no_array_is_refused(notif: Installation, door: Door, jobs: str | None) -> None:
    with pytest.raises(psycopg.Error) as raised:
        door.execute("SELECT core.publish(%s)", (jobs,))
    assert raised.value.sqlstate == "NT003"


def test_what_is_no_object_or_no_uuid_is_a_data_exception(notif: Installation, door: Door) -> None:
    states = [refusal(door, job(notif), bad)[0] for bad in (7, job(notif, job_id="x"), job(notif, run_at="soonZ"))]
    assert [state and state[:2] for state in states] == ["22", "22", "22"]
    assert rows(notif) == 0


def test_an_unknown_tenant_is_named_with_the_nearest(notif: Installation, door: Door) -> None:
    typo = str(notif.tenant)[:-1] + ("0" if str(notif.tenant)[-1] != "0" else "1")
    with pytest.raises(psycopg.Error) as raised:
        publish(door, job(notif), job(notif, tenant_id=typo))
    diag = raised.value.diag
    assert (raised.value.sqlstate, diag.message_primary) == ("NT002", typo)
    assert diag.message_detail == f"{notif.tenant} (Acme)"
    assert refusal(door, job(notif, tenant_id=None)) == ("NT002", "null")
    assert rows(notif) == 0


def test_an_inactive_tenant_is_none(notif: Installation, door: Door) -> None:
    notif.app.tenants.deactivate(notif.tenant)
    assert refusal(door, job(notif)) == ("NT002", str(notif.tenant))


def test_the_same_id_with_other_content_is_a_conflict(notif: Installation, door: Door) -> None:
    mine = job(notif)
    publish(door, mine)
    assert refusal(door, job(notif), {**mine, "data": {**mine["data"], "name": "Bob"}}) == ("NT001", mine["job_id"])
    assert refusal(door, {**mine, "kind": "email.message"}) == ("NT001", mine["job_id"])
    assert rows(notif) == 1


def test_a_conflict_within_one_array_is_one_too(notif: Installation, door: Door) -> None:
    mine = job(notif)
    assert refusal(door, mine, {**mine, "data": {}}) == ("NT001", mine["job_id"])
    assert rows(notif) == 0


def test_it_joins_the_callers_transaction(notif: Installation, door: Door) -> None:
    with door.transaction(force_rollback=True):
        assert publish(door, job(notif)) == 1
    assert rows(notif) == 0


def at_once(notif: Installation, calls: list[list[dict[str, Any]]]) -> list[str | None]:
    """Each list on a connection of its own, all at the same moment; the SQLSTATE of each, None: published."""
    ready = threading.Barrier(len(calls))

    def one(jobs: list[dict[str, Any]]) -> str | None:
        with psycopg.connect(notif.servers.url("notif_publisher", notif.database), autocommit=True) as connection:
            ready.wait(10)
            try:
                publish(connection, *jobs)
            except psycopg.Error as error:
                return error.sqlstate
            return None

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_eight_publishers_of_the_same_ids_leave_one_row_each(notif: Installation) -> None:
    jobs = [job(notif) for _ in range(40)]
    orders = [jobs[n * 5 :] + jobs[: n * 5] for n in range(8)]  # each begins elsewhere: no two wait in a circle
    assert at_once(notif, orders) == [None] * 8
    assert rows(notif) == 40
    assert notif.one("SELECT count(DISTINCT generation) FROM core.outbox") == 40


def test_of_eight_contents_under_one_id_exactly_one_wins(notif: Installation) -> None:
    mine = job(notif)
    contents = [[{**mine, "data": {**mine["data"], "name": f"name {n}"}}] for n in range(8)]
    answers = at_once(notif, contents)
    assert sorted(answers, key=str) == ["NT001"] * 7 + [None]
    winner = contents[answers.index(None)][0]["data"]["name"]
    assert notif.rows("SELECT data ->> 'name' FROM core.outbox") == [(winner,)]


def test_published_again_while_its_row_is_ending_is_a_new_row(notif: Installation, door: Door) -> None:
    mine = job(notif)
    publish(door, mine)
    waiting = "SELECT true FROM pg_stat_activity WHERE query LIKE 'SELECT core.publish%' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(notif.servers.url("notif_owner", notif.database)) as settling:
        settling.execute("DELETE FROM core.outbox")
        answer = pool.submit(publish, door, mine)
        eventually(lambda: notif.admin(waiting), what="the publisher waits for the settle")
        settling.commit()
        assert answer.result(10) == 1
    assert rows(notif) == 1
