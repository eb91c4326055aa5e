"""What a provider's SDK makes of odd answers: ours go by the status, and nothing is sent without the provider's id."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from notif.adapters.http import PooledHttp
from notif.adapters.postgres.ledger import provider_key
from notif.adapters.resend import KEY, ResendProvider
from tests.kit import EMAIL, Installation
from tests.provider.servers import RawServer, answering, response
from tests.reports.ways import passed, waiting
from tests.spine.hands import Hands


@contextmanager
def answered(notif: Installation, answer: bytes) -> Iterator[Hands]:
    """A worker whose provider gives every request the same answer."""
    with RawServer(answering(answer)) as server:
        made = Hands(notif, ResendProvider("re_x", server.url("").rstrip("/"), http=PooledHttp()))
        yield made
        made.close()


def test_b83_a_503_in_html_is_a_counted_attempt(notif: Installation) -> None:
    notif.send()
    page = response(
        b"<html><h1>503 Service Unavailable</h1></html>", "503 Service Unavailable", "content-type: text/html"
    )
    with answered(notif, page) as hands:
        assert hands.turn() == ["retrying"]
    assert waiting(notif) == [("retrying", 1)]
    assert notif.one("SELECT due_at - now() BETWEEN interval '29 s' AND interval '60 s' FROM core.outbox") is True
    assert notif.one("SELECT ambiguous FROM core.outbox") is True


@pytest.mark.parametrize("body", [b'{"name": "validation_error", "mess', b"", b"scheduled_at must be future"])
def test_b84_the_status_decides_when_the_body_is_broken(notif: Installation, body: bytes) -> None:
    job = notif.send()
    with answered(notif, response(body, "429 Too Many Requests", "retry-after: 7")) as hands:
        assert hands.turn() == ["ready"]
    assert waiting(notif) == [("ready", 0)]  # waits, uncounted
    assert notif.one("SELECT until - now() BETWEEN interval '5 s' AND interval '7 s' FROM core.provider_state") is True
    with answered(notif, response(body, "422 Unprocessable Entity")) as hands:
        passed(notif, hands, 60)
        assert hands.turn() == ["dead"]
    assert notif.rows("SELECT job_id, attempts, outcome FROM core.dead_letters") == [(job, 1, "failed")]


@pytest.mark.parametrize("body", [b"{}", b'{"id": ""}', b"null", b'{"error": null, "data": null}', b'{"id": 7}'])
def test_b85_success_without_an_id_is_not_sent(notif: Installation, body: bytes) -> None:
    notif.send()
    with answered(notif, response(body)) as hands:
        assert hands.turn() == ["retrying"]
    assert notif.rows("SELECT state, ambiguous FROM core.outbox") == [("retrying", True)]
    assert notif.one("SELECT count(*) FROM core.delivery") == 0


def test_b86_what_changes_between_attempts_does_not_change_the_request(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults([{"fault": "reset_after"}])
    assert hands.turn() == ["retrying"]
    notif.rows('UPDATE core.outbox SET data = data || \'{"name": "Somebody else"}\'')  # or its template, or the code
    notif.due()
    assert hands.turn() == ["delivered"]
    assert len({(call["key"], call["body_hash"]) for call in notif.sandbox.requests()}) == 1
    assert len(notif.mails_of(job)) == 1


def test_b86_in_progress_is_tried_again_and_another_body_is_not(notif: Installation, hands: Hands) -> None:
    job = notif.send()
    notif.sandbox.faults(
        [
            {"fault": "error", "status": 409, "name": "concurrent_idempotent_requests"},
            {"fault": "error", "status": 409, "name": "invalid_idempotent_request"},
        ]
    )
    assert hands.turn() == ["retrying"]
    notif.due()
    assert hands.turn() == ["dead"]
    # an earlier request under this key got in: nobody may say that nothing was sent
    assert notif.rows("SELECT job_id, cause, outcome FROM core.dead_letters") == [
        (job, "invalid_idempotent_request", "unknown")
    ]


def test_b86_after_its_key_has_died_a_request_is_not_repeated(notif: Installation, hands: Hands) -> None:
    notif.send()
    notif.sandbox.faults([{"fault": "reset_after"}])
    assert hands.turn() == ["retrying"]
    passed(notif, hands, 25 * 3600)
    assert hands.turn() == ["dead"]
    assert notif.rows("SELECT cause, outcome FROM core.dead_letters") == [("unrepeatable", "unknown")]
    assert len(notif.sandbox.requests()) == 1


def test_b86_the_longest_key_there_can_be_is_short_enough() -> None:
    longest = provider_key(uuid.uuid4(), "c" * 80, 2**31 - 1)
    assert re.fullmatch(KEY, longest)
    assert provider_key(uuid.UUID(int=1), EMAIL, 0) != provider_key(uuid.UUID(int=1), EMAIL, 1)
