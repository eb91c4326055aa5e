"""Better Stack's adapter against its stand-in, and alerts as log lines."""

from collections.abc import MutableMapping
from typing import Any

import pytest
import structlog

from notif.adapters.betterstack import BetterStackAlerts
from notif.adapters.http import PooledHttp
from notif.adapters.log_alerts import LogAlerts
from notif.errors import ConfigurationError, Unavailable
from notif.ports import Alert, AlertPort
from notif.sandbox import SandboxClient
from tests.provider.servers import RawServer, answering, closed_port, response

ALERT = Alert(
    "notif.email.transactional:validation_error",
    "Dead letters on notif.email.transactional",
    "3 pending, cause validation_error",
    "dead_letters",
)


@pytest.fixture
def alerts(http: PooledHttp, sandbox_url: str) -> AlertPort:
    return BetterStackAlerts("token", sandbox_url, http, "ops@acme.test")


def test_an_incident_from_open_to_resolved(alerts: AlertPort, sandbox: SandboxClient) -> None:
    incident = alerts.open(ALERT)
    (raised,) = sandbox.incidents()
    assert raised["id"] == incident
    assert (raised["summary"], raised["description"]) == (ALERT.title, ALERT.detail)
    assert raised["requester_email"] == "ops@acme.test"
    assert raised["metadata"] == {"key": ALERT.key, "kind": "dead_letters"}
    assert raised["resolved_at"] is None
    alerts.resolve(incident)
    (resolved,) = sandbox.incidents()
    assert resolved["resolved_at"]
    assert resolved["resolved_by"] == "ops@acme.test"


def test_the_requester_is_always_sent(http: PooledHttp, sandbox: SandboxClient, sandbox_url: str) -> None:
    BetterStackAlerts("token", f"{sandbox_url}/", http).open(ALERT)
    assert "@" in sandbox.incidents()[0]["requester_email"]


def test_resolved_or_deleted_by_somebody_else_is_what_was_wished(alerts: AlertPort, sandbox: SandboxClient) -> None:
    incident = alerts.open(ALERT)
    alerts.resolve(incident)
    alerts.resolve(incident)
    alerts.resolve("no/such?incident")
    assert [entry["status"] for entry in sandbox.requests()] == [201, 200, 409, 404]


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "500"},
        {"fault": "html_502"},
        {"fault": "reset_before"},
        {"fault": "truncated"},
        {"fault": "429"},
        {"fault": "error", "status": 401},
    ],
    ids=lambda fault: fault["fault"],
)
def test_anything_else_is_unavailable_and_not_repeated(
    alerts: AlertPort, sandbox: SandboxClient, fault: dict[str, Any]
) -> None:
    incident = alerts.open(ALERT)
    sandbox.faults([{**fault, "times": 2}])
    with pytest.raises(Unavailable, match="Better Stack"):
        alerts.open(ALERT)
    with pytest.raises(Unavailable, match="Better Stack"):
        alerts.resolve(incident)
    assert len(sandbox.requests()) == 3


@pytest.mark.parametrize(
    "body", [b"{}", b"<html>", b'{"data":[]}', b'{"data":{"id":null}}', b'{"data":{"id":""}}', b"3"]
)
def test_success_without_an_incident_is_unavailable(http: PooledHttp, body: bytes) -> None:
    with RawServer(answering(response(body, "201 Created"))) as server, pytest.raises(Unavailable, match="201"):
        BetterStackAlerts("token", server.url(""), http).open(ALERT)


def test_nobody_there(http: PooledHttp) -> None:
    with pytest.raises(Unavailable):
        BetterStackAlerts("token", f"http://127.0.0.1:{closed_port()}", http).open(ALERT)


@pytest.mark.parametrize("token", ["", "a b", "a\n"])
def test_an_impossible_token_does_not_boot(token: str) -> None:
    with pytest.raises(ConfigurationError, match="BETTERSTACK_TOKEN"):
        BetterStackAlerts(token)


def test_without_a_service_alerts_are_log_lines() -> None:
    lines: list[dict[str, Any]] = []

    def keep(_: object, level: str, line: MutableMapping[str, Any]) -> str:
        lines.append({"level": level, **line})
        raise structlog.DropEvent

    alerts: AlertPort = LogAlerts(structlog.wrap_logger(None, processors=[keep]))
    alerts.resolve(alerts.open(ALERT))
    assert lines == [
        {
            "level": "error",
            "event": "alert",
            "key": ALERT.key,
            "title": ALERT.title,
            "detail": ALERT.detail,
            "kind": "dead_letters",
        },
        {"level": "info", "event": "alert resolved", "key": ALERT.key},
    ]
