"""Every answer a provider can give, through the whole: what becomes of the job. Rows are Resend's (its "Errors" page)."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from notif.adapters.resend import ResendProvider
from notif.sandbox import Sandbox
from tests import servers as real
from tests.kit import EMAIL, Installation
from tests.spine.hands import Hands


class End(NamedTuple):
    """What a turn answers, and what it leaves: the row, or the letter."""

    turn: str
    attempts: int
    unknown: bool = False
    """Row or letter carries the ambiguity mark."""
    cause: str = ""
    closing: tuple[str, str] | None = None
    """State and domain of what was closed."""


def dead(cause: str, *, unknown: bool = False) -> End:
    return End("dead", 1, unknown, cause)


RETRIED = End("retrying", 1, True)
HALTED = End("halted", 0, closing=("halted", ""))
DOMAIN = End("halted", 0, closing=("halted", "mail.acme.test"))
CLOSED = End("ready", 0, closing=("closed", ""))

TABLE: dict[tuple[int, str], End] = {
    (400, "invalid_idempotency_key"): dead("invalid_idempotency_key"),
    (400, "validation_error"): dead("validation_error"),
    (401, "missing_api_key"): HALTED,
    (401, "restricted_api_key"): HALTED,
    (401, "validation_error"): HALTED,
    (403, "invalid_api_key"): HALTED,
    (403, "suspended_api_key"): HALTED,
    (403, "invalid_permission"): HALTED,
    (403, "validation_error"): DOMAIN,
    (403, "application_error"): dead("application_error"),
    (404, "not_found"): dead("not_found"),
    (405, "method_not_allowed"): dead("method_not_allowed"),
    (409, "invalid_idempotent_request"): dead("invalid_idempotent_request", unknown=True),
    (409, "concurrent_idempotent_requests"): RETRIED,
    (409, "resource_locked"): RETRIED,
    (422, "invalid_attachment"): dead("invalid_attachment"),
    (422, "invalid_from_address"): dead("invalid_from_address"),
    (422, "invalid_access"): dead("invalid_access"),
    (422, "invalid_parameter"): dead("invalid_parameter"),
    (422, "invalid_region"): dead("invalid_region"),
    (422, "missing_required_field"): dead("missing_required_field"),
    (422, "validation_error"): dead("validation_error"),
    (429, "rate_limit_exceeded"): CLOSED,
    (429, "daily_quota_exceeded"): CLOSED,
    (429, "monthly_quota_exceeded"): CLOSED,
    (451, "security_error"): dead("security_error"),
    (500, "application_error"): RETRIED,
    (500, "internal_server_error"): RETRIED,
    (503, "service_unavailable"): RETRIED,
    # Names that are new, or none of Resend's: unknown 4xx permanent, 5xx unclear, 401 the key, 429 closed.
    (401, "some_new_name"): HALTED,
    (418, "some_new_name"): dead("some_new_name"),
    (422, "some_new_name"): dead("some_new_name"),
    (429, "some_new_name"): CLOSED,
    (502, "some_new_name"): RETRIED,
    (529, "some_new_name"): RETRIED,
}

WIRE: dict[str, tuple[dict[str, Any], End]] = {
    "no JSON": ({"fault": "html_502"}, RETRIED),
    "reset before the effect": ({"fault": "reset_before"}, RETRIED),
    "reset after the effect": ({"fault": "reset_after"}, RETRIED),
    "half an answer": ({"fault": "truncated"}, RETRIED),
    "no answer within the deadline": ({"fault": "hang"}, RETRIED),
    "no id in a 200": ({"fault": "error", "status": 200, "name": "x"}, RETRIED),
}


@pytest.fixture(scope="module")
def made(
    servers: real.Servers, database: str, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Installation, Hands]]:
    """Built once: the table is long."""
    real.emptied(servers, database)
    notif = Installation(servers, database, sandbox, tmp_path_factory.mktemp("table"))
    hands = Hands(notif)
    yield notif, hands
    hands.close()
    notif.close()


@pytest.fixture
def notif(made: tuple[Installation, Hands], servers: real.Servers, database: str) -> Installation:
    notif, hands = made
    real.emptied(servers, database)
    notif.sandbox.reset()
    notif.tenant = notif.add_tenant("Acme")
    hands.closings.refresh()
    return notif


@pytest.fixture
def hands(made: tuple[Installation, Hands]) -> Hands:
    return made[1]


def left(notif: Installation, turn: str) -> End:
    """What is in the tables now, as an End."""
    closings = notif.rows("SELECT state, domain FROM core.provider_state WHERE until > now()")
    assert len(closings) <= 1
    closing = closings[0] if closings else None
    rows = notif.rows("SELECT state, attempts, ambiguous, ambiguous = (key_since IS NOT NULL) FROM core.outbox")
    letters = notif.rows("SELECT 'dead', attempts, outcome = 'unknown', cause FROM core.dead_letters")
    assert len(rows) + len(letters) == 1
    if letters:
        letter, attempts, unknown, cause = letters[0]
        return End(letter, attempts, unknown, cause, closing)
    state, attempts, ambiguous, clock = rows[0]
    assert (state, clock) == (turn, True)
    return End(state, attempts, ambiguous, "", closing)


def play(notif: Installation, hands: Hands, fault: dict[str, Any]) -> End:
    notif.send("email.message", **{"from": "Shop <shop@mail.acme.test>"})
    notif.sandbox.faults([fault])
    (turn,) = hands.turn()
    assert notif.one("SELECT count(*) FROM core.processed_job") == 0
    return left(notif, turn)


@pytest.mark.parametrize(("status", "name"), TABLE, ids=str)
def test_every_row_of_the_error_table(notif: Installation, hands: Hands, status: int, name: str) -> None:
    end = play(notif, hands, {"fault": "error", "status": status, "name": name, "message": "because"})
    assert end == TABLE[status, name]
    if end.turn == "dead":
        assert notif.one("SELECT last_error FROM core.dead_letters") == f"{status} {name}: because"


@pytest.mark.parametrize("what", WIRE)
def test_every_way_an_answer_can_fail(notif: Installation, hands: Hands, what: str) -> None:
    fault, end = WIRE[what]
    assert play(notif, hands, fault) == end
    notif.due()
    assert hands.turn() == ["delivered"]
    assert len(notif.mails()) == 1  # whatever had arrived: the same request under the same key is one mail
    requests = notif.sandbox.requests()
    assert len({(request["key"], request["body_hash"]) for request in requests}) == 1


def test_a_provider_that_is_not_there_spends_no_attempt(notif: Installation, hands: Hands) -> None:
    """No connection was made: certain that nothing was done, and no key's clock is running."""
    notif.send()
    away = Hands(notif, ResendProvider("re_sandbox", "http://127.0.0.1:1"))
    (turn,) = away.turn()
    away.close()
    hands.provider.close()
    hands.provider = hands.app.provider("resend")  # the SDK knows the last one made
    assert left(notif, turn) == End("ready", 0)
    (status,) = notif.app.queue.status(notif.one("SELECT job_id FROM core.outbox"))
    assert status.waits_for
    assert status.waits_for.startswith("provider not reached: ")


def test_a_frozen_request_is_repeated_byte_for_byte(notif: Installation, hands: Hands) -> None:
    """Also where the template or the model has changed since: the row's own bytes are sent, never a new rendering."""
    job = notif.send()
    notif.sandbox.faults([{"fault": "500"}])
    hands.turn()
    request = json.loads(notif.one("SELECT request FROM core.outbox WHERE job_id = %s", job))
    notif.rows('UPDATE core.outbox SET data = data || \'{"name": "Somebody else"}\'')
    notif.due()
    assert hands.turn() == ["delivered"]
    (mail,) = notif.mails_of(job)
    assert (mail["html"], mail["text"], mail["subject"]) == (request["html"], request["text"], request["subject"])
    assert mail["key"] == f"{job}:{EMAIL}"
