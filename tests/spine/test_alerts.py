"""Somebody is told: one incident per queue and cause, once, and once more when it is over."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from notif.adapters.betterstack import BetterStackAlerts
from notif.adapters.http import PooledHttp
from notif.alerts import Alerts
from notif.closings import halt, quota, throttle
from notif.ports import Closing
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands

PATH = "/api/v3/incidents"
DEAD = {"fault": "error", "status": 422, "name": "invalid_parameter", "path": "/emails", "times": None}
Office = Callable[[], Alerts]


@pytest.fixture
def office(notif: Installation) -> Iterator[Office]:
    """Makes what one maintenance process tells alerts with."""
    clients: list[PooledHttp] = []

    def made() -> Alerts:
        clients.append(PooledHttp(connections=2))
        service = BetterStackAlerts("token", notif.env("notif_worker")["RESEND_API_URL"], clients[-1])
        return Alerts(notif.app.incidents, service, notif.app.log)

    yield made
    for client in clients:
        client.close()


def posts(notif: Installation) -> list[str]:
    return [request["path"] for request in notif.sandbox.requests() if request["path"].startswith(PATH)]


def later(notif: Installation) -> None:
    """Every backoff, and the time of whoever was telling, has passed."""
    notif.rows("UPDATE core.incident SET next_try_at = now() - interval '1 ms'")


def die(notif: Installation, hands: Hands, count: int = 1, name: str = "invalid_parameter") -> None:
    notif.send_many(count)
    notif.sandbox.faults([{**DEAD, "name": name}])
    assert hands.turn() == ["dead"] * count


def close(notif: Installation, *closings: Closing) -> None:
    for closing in closings:
        notif.app.closings.close(closing)


def discard_all(notif: Installation) -> None:
    for letter in notif.app.letters.list():
        notif.app.letters.discard(letter.id, reason="seen", who="test")


def test_however_many_letters_one_incident_per_queue_and_cause(
    notif: Installation, hands: Hands, office: Office
) -> None:
    die(notif, hands, 7)
    die(notif, hands, 1, "invalid_region")
    alerts = office()
    alerts.turn()
    die(notif, hands, 3)
    alerts.turn()
    incidents = notif.sandbox.incidents()
    assert sorted(incident["metadata"]["key"] for incident in incidents) == [
        f"dead_letters:{EMAIL}:invalid_parameter",
        f"dead_letters:{EMAIL}:invalid_region",
    ]
    (first,) = (incident for incident in incidents if "parameter" in incident["name"])
    assert first["name"] == f"dead letters: invalid_parameter on {EMAIL}"
    assert first["description"].startswith("7 pending since ")
    assert "invalid_parameter" in first["description"]
    assert len(posts(notif)) == 2


def test_it_is_resolved_when_none_of_its_cause_is_pending(notif: Installation, hands: Hands, office: Office) -> None:
    die(notif, hands, 2)
    alerts = office()
    alerts.turn()
    first, second = notif.app.letters.list()
    notif.app.letters.discard(first.id, reason="seen", who="ann")
    alerts.turn()
    assert [incident["resolved_at"] for incident in notif.sandbox.incidents()] == [None]
    notif.app.letters.replay(second.id, None, accept=False, who="ann")
    alerts.turn()
    (incident,) = notif.sandbox.incidents()
    assert incident["resolved_at"] is not None
    assert notif.one("SELECT count(*) FROM core.incident") == 0
    assert posts(notif) == [PATH, f"{PATH}/{incident['id']}/resolve"]


def test_a_cause_that_comes_back_is_an_incident_of_its_own(notif: Installation, hands: Hands, office: Office) -> None:
    alerts = office()
    for _ in range(2):
        die(notif, hands)
        alerts.turn()
        discard_all(notif)
        alerts.turn()
    assert [incident["resolved_at"] is not None for incident in notif.sandbox.incidents()] == [True, True]


@pytest.mark.parametrize(
    ("closing", "title", "detail"),
    [
        (halt("resend", "", "401 restricted_api_key"), "resend is halted", "; when mended: notif resume resend"),
        (
            halt("resend", "mail.acme.test", "403 not verified"),
            "resend mail.acme.test is halted",
            "; when mended: notif resume resend --domain mail.acme.test",
        ),
        (quota("resend", "429 daily_quota_exceeded", 3600), "resend is closed", "; until "),
    ],
    ids=["provider", "domain", "quota"],
)
def test_a_halt_and_a_quota_are_told_with_what_to_do(
    notif: Installation, office: Office, closing: Closing, title: str, detail: str
) -> None:
    alerts = office()
    close(notif, closing, closing)
    alerts.turn()
    close(notif, closing)
    alerts.turn()
    (incident,) = notif.sandbox.incidents()
    assert incident["name"] == title
    assert incident["description"].startswith(closing.reason + detail)
    assert notif.app.upkeep.resume("resend", closing.domain, [EMAIL], "ann")
    alerts.turn()
    assert [one["resolved_at"] is not None for one in notif.sandbox.incidents()] == [True]


def test_a_429_of_a_minute_wakes_nobody(notif: Installation, office: Office) -> None:
    close(notif, throttle("resend", "429 rate_limit_exceeded", 60, 1))
    office().turn()
    assert notif.sandbox.incidents() == []


def test_two_maintenance_processes_in_turns_tell_once(notif: Installation, hands: Hands, office: Office) -> None:
    one, other = office(), office()
    die(notif, hands)
    for alerts in (one, other, one, other):
        alerts.turn()
    discard_all(notif)
    for alerts in (other, one, other, one):
        alerts.turn()
    assert len(posts(notif)) == 2
    assert [incident["resolved_at"] is not None for incident in notif.sandbox.incidents()] == [True]


def test_four_maintenance_processes_at_once_tell_once(notif: Installation, office: Office) -> None:
    offices, gate = [office() for _ in range(4)], threading.Barrier(4)

    def turn(alerts: Alerts) -> None:
        gate.wait(10)
        alerts.turn()

    with ThreadPoolExecutor(4) as pool:
        close(notif, halt("resend", "", "bad key"), halt("resend", "a.test", "x"), halt("resend", "b.test", "x"))
        list(pool.map(turn, offices))
        assert len(notif.sandbox.incidents()) == 3
        notif.rows("DELETE FROM core.provider_state")
        list(pool.map(turn, offices))
    assert len(posts(notif)) == 6
    assert notif.one("SELECT count(*) FROM core.incident") == 0


def test_what_one_process_is_telling_the_other_leaves_alone(notif: Installation, office: Office) -> None:
    """The first hangs in its call; meanwhile the cause goes, and the other looks. The incident is resolved all the same."""
    one, other = office(), office()
    close(notif, halt("resend", "", "bad key"))
    notif.sandbox.faults([{"fault": "hold", "path": PATH}])
    hanging = threading.Thread(target=one.turn)
    hanging.start()
    notif.sandbox.wait_for_held()
    other.turn()
    notif.rows("DELETE FROM core.provider_state")
    other.turn()
    notif.sandbox.release()
    hanging.join()
    other.turn()
    assert len(posts(notif)) == 2
    assert [incident["resolved_at"] is not None for incident in notif.sandbox.incidents()] == [True]


def test_a_process_that_dies_while_telling_is_followed_by_another(notif: Installation, office: Office) -> None:
    close(notif, halt("resend", "", "bad key"))
    notif.app.incidents.take()  # and then it was killed
    other = office()
    other.turn()
    assert notif.sandbox.incidents() == []
    later(notif)
    other.turn()
    assert len(notif.sandbox.incidents()) == 1


@pytest.mark.parametrize("fault", [{"fault": "500"}, {"fault": "reset_before"}, {"fault": "html_502"}])
def test_a_service_that_is_down_is_told_again_later_and_later(
    notif: Installation, office: Office, fault: dict[str, Any]
) -> None:
    alerts = office()
    close(notif, halt("resend", "", "bad key"))
    notif.sandbox.faults([{**fault, "path": PATH, "times": 3}])
    for tries, wait in enumerate((2, 4, 8), 1):
        before = notif.one("SELECT now()")
        alerts.turn()
        alerts.turn()  # not before its time
        since = "SELECT extract(epoch FROM next_try_at - %s)::float, extract(epoch FROM next_try_at - now())::float"
        ((since_before, since_now),) = notif.rows(f"{since} FROM core.incident", before)
        assert since_now <= wait <= since_before
        assert (len(posts(notif)), notif.one("SELECT tries FROM core.incident")) == (tries, tries)
        later(notif)
    alerts.turn()
    assert len(notif.sandbox.incidents()) == 1
    assert notif.rows("SELECT tries, provider_id IS NOT NULL FROM core.incident") == [(0, True)]


def test_resolving_is_tried_again_too(notif: Installation, office: Office) -> None:
    alerts = office()
    close(notif, halt("resend", "", "bad key"))
    alerts.turn()
    notif.rows("DELETE FROM core.provider_state")
    notif.sandbox.faults([{"fault": "500"}])
    alerts.turn()
    assert [incident["resolved_at"] for incident in notif.sandbox.incidents()] == [None]
    later(notif)
    alerts.turn()
    assert [incident["resolved_at"] is not None for incident in notif.sandbox.incidents()] == [True]


def test_a_cause_that_returns_before_its_end_was_told_is_told_again(notif: Installation, office: Office) -> None:
    """Whether that end arrived is not known: the old incident is ended for certain, and a new one raised."""
    alerts = office()
    close(notif, halt("resend", "", "bad key"))
    alerts.turn()
    notif.rows("DELETE FROM core.provider_state")
    notif.sandbox.faults([{"fault": "reset_after"}])
    alerts.turn()
    close(notif, halt("resend", "", "bad key again"))
    later(notif)
    alerts.turn()
    alerts.turn()
    incidents = notif.sandbox.incidents()
    assert [(one["description"][:13], one["resolved_at"] is not None) for one in incidents] == [
        ("bad key; when", True),
        ("bad key again", False),
    ]


def test_while_the_service_is_down_mails_go_out(notif: Installation, hands: Hands, office: Office) -> None:
    notif.sandbox.faults([DEAD, {"fault": "reset_before", "path": PATH, "times": None}])
    notif.send()
    assert hands.turn() == ["dead"]
    notif.sandbox.faults([{"fault": "reset_before", "path": PATH, "times": None}])
    office().turn()
    job = notif.send()
    assert hands.turn() == ["delivered"]
    assert len(notif.mails_of(job)) == 1


def test_what_came_and_went_before_it_was_told_is_never_told(notif: Installation, hands: Hands, office: Office) -> None:
    alerts = office()
    die(notif, hands)
    discard_all(notif)
    alerts.turn()
    close(notif, halt("resend", "", "bad key"))
    notif.sandbox.faults([{"fault": "500", "path": PATH}])
    alerts.turn()  # the service is down
    notif.rows("DELETE FROM core.provider_state")
    later(notif)
    alerts.turn()
    assert (notif.sandbox.incidents(), len(posts(notif))) == ([], 1)
    assert notif.one("SELECT count(*) FROM core.incident") == 0


def test_an_alert_told_late_tells_the_latest(notif: Installation, hands: Hands, office: Office) -> None:
    alerts = office()
    die(notif, hands)
    notif.sandbox.faults([{"fault": "500", "path": PATH}])
    alerts.turn()
    die(notif, hands, 4)
    later(notif)
    alerts.turn()
    (incident,) = notif.sandbox.incidents()
    assert incident["description"].startswith("5 pending since ")


def test_many_causes_are_all_told(notif: Installation, office: Office) -> None:
    close(notif, *(halt("resend", f"{n}.test", "not verified") for n in range(12)))
    alerts = office()
    for _ in range(3):
        alerts.turn()
    assert len({incident["metadata"]["key"] for incident in notif.sandbox.incidents()}) == len(posts(notif)) == 12
