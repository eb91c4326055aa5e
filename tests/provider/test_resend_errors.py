"""Every way in which Resend may answer, to ours; through the real SDK over real sockets."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from notif.adapters.http import PooledHttp
from notif.adapters.resend import ERROR_LENGTH, ResendProvider
from notif.sandbox import SandboxClient
from notif.verdict import Accepted, Answer, Invalid, NeedsPerson, NotReached, QuotaSpent, Throttled, Unclear
from tests.provider.servers import RawServer, answering, closed_port, read_request, response

At = Callable[[str], ResendProvider]

MESSAGE: dict[str, Any] = {
    "from": "Acme <n@mail.acme.test>",
    "to": ["u@example.test"],
    "subject": "Hi",
    "text": "hi",
    "tags": [{"name": "job", "value": "j-1"}, {"name": "n", "value": "0"}],
}
KEY = "0192-job:notif.email.transactional"
BAD_KEY = NeedsPerson("", "")
BAD_SENDER = NeedsPerson("mail.acme.test", "")


def request_of(**changes: Any) -> bytes:
    return json.dumps({**MESSAGE, **changes}, sort_keys=True, separators=(",", ":")).encode()


def bare(answer: Answer) -> Answer:
    """Without its text, which is the service's."""
    return answer if isinstance(answer, Accepted) else type(answer)(**{**_fields(answer), "error": ""})


def _fields(answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in type(answer).__dataclass_fields__}


TABLE: list[tuple[int, str, Answer]] = [
    (400, "invalid_idempotency_key", Invalid("invalid_idempotency_key", "")),
    (400, "validation_error", Invalid("validation_error", "")),
    (401, "missing_api_key", BAD_KEY),
    (401, "restricted_api_key", BAD_KEY),
    (401, "validation_error", BAD_KEY),
    (401, "something_new", BAD_KEY),
    (403, "invalid_api_key", BAD_KEY),
    (403, "suspended_api_key", BAD_KEY),
    (403, "invalid_permission", BAD_KEY),
    (403, "validation_error", BAD_SENDER),
    (403, "something_new", Invalid("something_new", "")),
    (404, "not_found", Invalid("not_found", "")),
    (405, "method_not_allowed", Invalid("method_not_allowed", "")),
    (408, "something_new", Unclear("")),
    (409, "invalid_idempotent_request", Invalid("invalid_idempotent_request", "", unclear=True)),
    (409, "concurrent_idempotent_requests", Unclear("")),
    (409, "resource_locked", Unclear("")),
    (409, "something_new", Invalid("something_new", "")),
    *(
        (422, name, Invalid(name, ""))
        for name in (
            "invalid_attachment",
            "invalid_from_address",
            "invalid_access",
            "invalid_parameter",
            "invalid_region",
            "missing_required_field",
            "missing_required_fields",
            "validation_error",
            "something_new",
        )
    ),
    (429, "rate_limit_exceeded", Throttled(1, 1, "")),
    (429, "daily_quota_exceeded", QuotaSpent(datetime(2027, 1, 1, tzinfo=UTC), "")),
    (429, "monthly_quota_exceeded", QuotaSpent(datetime(2027, 1, 1, tzinfo=UTC), "")),
    (429, "something_new", Throttled(60, 60, "")),
    (451, "security_error", Invalid("security_error", "")),
    (499, "something_new", Invalid("something_new", "")),
    (500, "application_error", Unclear("")),
    (500, "internal_server_error", Unclear("")),
    (500, "HttpClientError", Unclear("")),
    (500, "something_new", Unclear("")),
    (503, "service_unavailable", Unclear("")),
    (599, "something_new", Unclear("")),
]


@pytest.mark.parametrize(("status", "name", "expected"), TABLE, ids=[f"{row[0]}-{row[1]}" for row in TABLE])
def test_every_row_of_the_error_table(
    status: int, name: str, expected: Answer, sandbox: SandboxClient, sandbox_url: str, http: PooledHttp
) -> None:
    provider = ResendProvider("re_x", sandbox_url, http=http, clock=lambda: datetime(2026, 12, 31, 9, tzinfo=UTC))
    fault: dict[str, Any] = {"fault": "error", "status": status, "name": name, "message": "what it is"}
    sandbox.faults([fault])
    answer = provider.send(request_of(), KEY, 10)
    assert bare(answer) == expected
    if "in progress" not in (text := _fields(answer)["error"]):
        assert text == f"{status} {name}: what it is" or name == "missing_api_key"
    assert sandbox.mails() == []
    assert [(entry["status"], entry["fault"]) for entry in sandbox.requests()] == [(status, "error")]


@pytest.mark.parametrize(
    ("now", "name", "until"),
    [
        ("2026-11-30T23:59:59+00:00", "daily_quota_exceeded", "2026-12-01"),
        ("2026-11-30T23:30:00-05:00", "daily_quota_exceeded", "2026-12-02"),
        ("2026-11-30T12:00:00+00:00", "monthly_quota_exceeded", "2026-12-01"),
        ("2027-01-31T12:00:00+00:00", "monthly_quota_exceeded", "2027-02-01"),
        ("2026-12-01T00:00:00+00:00", "monthly_quota_exceeded", "2027-01-01"),
    ],
)
def test_quotas_end_by_utc(
    now: str, name: str, until: str, sandbox: SandboxClient, sandbox_url: str, http: PooledHttp
) -> None:
    provider = ResendProvider("re_x", sandbox_url, http=http, clock=lambda: datetime.fromisoformat(now))
    sandbox.faults([{"fault": "429", "name": name}])
    answer = provider.send(request_of(), KEY, 10)
    assert isinstance(answer, QuotaSpent)
    assert answer.until == datetime.fromisoformat(until).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds", "reset"),
    [
        ({"Retry-After": "7", "RateLimit-Reset": "3"}, 7, 3),
        ({"RETRY-AFTER": "0.25"}, 0.25, 0.25),
        ({"ratelimit-reset": "2"}, 2, 2),
        ({"retry-after": "3600", "ratelimit-reset": "3600"}, 60, 60),
        ({"retry-after": "soon", "ratelimit-reset": "-1"}, 1, 1),
        ({"retry-after": "0", "ratelimit-reset": "nan"}, 1, 1),
        ({"retry-after": "1e9"}, 1, 1),
        ({}, 1, 1),
    ],
)
def test_the_wait_after_a_429(
    provider: ResendProvider, sandbox: SandboxClient, headers: dict[str, str], seconds: float, reset: float
) -> None:
    sandbox.faults([{"fault": "error", "status": 429, "name": "rate_limit_exceeded", "headers": headers}])
    answer = provider.send(request_of(), KEY, 10)
    assert isinstance(answer, Throttled)
    assert (answer.seconds, answer.reset_seconds) == (seconds, reset)


@pytest.mark.parametrize(
    ("sender", "domain"),
    [
        ("n@mail.acme.test", "mail.acme.test"),
        ("Acme <n@Mail.ACME.test>", "mail.acme.test"),
        ('"Acme, Inc. @ home" <n@acme.test>', "acme.test"),
    ],
)
def test_an_unverified_domain_halts_that_domain(
    provider: ResendProvider, sandbox: SandboxClient, sender: str, domain: str
) -> None:
    sandbox.limits(unverified=[domain])
    assert bare(provider.send(request_of(**{"from": sender}), KEY, 10)) == NeedsPerson(domain, "")
    assert isinstance(provider.send(request_of(**{"from": "n@other.test"}), "other", 10), Accepted)


@pytest.mark.parametrize("key", ["re_bad_1", "re_invalid_1", "re_restricted_1", "re_suspended_1", "whatever"])
def test_a_bad_key_halts_the_provider(key: str, sandbox: SandboxClient, sandbox_url: str, http: PooledHttp) -> None:
    assert bare(ResendProvider(key, sandbox_url, http=http).send(request_of(), KEY, 10)) == BAD_KEY


def test_the_rate_limit_itself(provider: ResendProvider, sandbox: SandboxClient) -> None:
    sandbox.limits(rate=1)
    answers = [provider.send(request_of(), f"k{n}", 10) for n in range(4)]
    throttled = [answer for answer in answers if isinstance(answer, Throttled)]
    assert throttled
    assert all(answer.seconds == answer.reset_seconds == 1 for answer in throttled)
    assert len(sandbox.mails()) == len(answers) - len(throttled)


def test_the_same_key_for_another_request(provider: ResendProvider, sandbox: SandboxClient) -> None:
    assert isinstance(provider.send(request_of(), KEY, 10), Accepted)
    answer = provider.send(request_of(text="other"), KEY, 10)
    assert bare(answer) == Invalid("invalid_idempotent_request", "", unclear=True)
    assert len(sandbox.mails()) == 1


def test_an_earlier_request_in_progress(provider: ResendProvider, sandbox: SandboxClient) -> None:
    sandbox.faults([{"fault": "hold_before"}])
    first: list[Answer] = []
    thread = threading.Thread(target=lambda: first.append(provider.send(request_of(), KEY, 30)))
    thread.start()
    sandbox.wait_for_held()
    assert provider.send(request_of(), KEY, 10) == Unclear("an earlier request is in progress")
    sandbox.release()
    thread.join()
    assert first == [provider.send(request_of(), KEY, 10)]
    assert [mail["id"] for mail in sandbox.mails()] == [_fields(first[0])["provider_id"]]


@pytest.mark.parametrize(
    ("fault", "arrived"),
    [
        ({"fault": "reset_before"}, 0),
        ({"fault": "reset_after"}, 1),
        ({"fault": "hang"}, 0),
        ({"fault": "truncated"}, 1),
        ({"fault": "html_502"}, 0),
        ({"fault": "500"}, 0),
        ({"fault": "500", "effect": True}, 1),
        ({"fault": "html_502", "effect": True}, 1),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_an_unclear_answer_may_hide_either(
    provider: ResendProvider, sandbox: SandboxClient, fault: dict[str, Any], arrived: int
) -> None:
    provider.send(request_of(), "connects", 10)
    sandbox.faults([fault])
    assert isinstance(provider.send(request_of(), KEY, 0.5 if fault["fault"] == "hang" else 10), Unclear)
    assert len(sandbox.mails(after=1)) == arrived
    again = provider.send(request_of(), KEY, 10)
    assert [again] == [Accepted(mail["id"]) for mail in sandbox.mails(after=1)]


def test_slow_is_accepted_within_the_deadline_and_unclear_past_it(
    provider: ResendProvider, sandbox: SandboxClient
) -> None:
    sandbox.faults([{"fault": "latency", "seconds": 0.2}, {"fault": "hold"}])
    assert isinstance(provider.send(request_of(), "a", 10), Accepted)
    assert isinstance(provider.send(request_of(), "b", 0.3), Unclear)
    assert len(sandbox.mails()) == 2


def test_nobody_there(provider_at: At) -> None:
    assert isinstance(provider_at(f"http://127.0.0.1:{closed_port()}").send(request_of(), KEY, 10), NotReached)


HTML = "content-type: text/html"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(response(b"{}"), Unclear(""), id="200 without an id"),
        pytest.param(response(b'{"id":""}'), Unclear(""), id="200 with an empty id"),
        pytest.param(response(b'{"id":7}'), Unclear(""), id="200 with a number for an id"),
        pytest.param(response(b"null"), Unclear(""), id="200 null"),
        pytest.param(response(b"[]"), Unclear(""), id="200 array"),
        pytest.param(response(b'"ok"'), Unclear(""), id="200 string"),
        pytest.param(response(b'{"id":"e1'), Unclear(""), id="200 torn JSON"),
        pytest.param(response(b"<html>", "200 OK", HTML), Unclear(""), id="200 HTML"),
        pytest.param(response(b'{"id":"e1","statusCode":202}'), Unclear(""), id="200 that says 202"),
        pytest.param(response(b'{"id":"e1","statusCode":"x"}'), Unclear(""), id="200 that says x"),
        pytest.param(response(b'{"id":"e1"}', "201 Created"), Accepted("e1"), id="201"),
        pytest.param(response(b'{"id":"e1"}', "302 Found"), Unclear(""), id="302 with an id"),
        pytest.param(response(b"<html>", "301 Moved", HTML, "location: /x"), Unclear(""), id="301 HTML"),
        pytest.param(response(b"error code: 1010", "403 No", HTML), Invalid("application_error", ""), id="403 HTML"),
        pytest.param(response(b"<html>", "401 No", HTML), BAD_KEY, id="401 HTML"),
        pytest.param(response(b"<html>", "413 Large", HTML), Invalid("application_error", ""), id="413 HTML"),
        pytest.param(response(b'{"na', "422 No"), Invalid("application_error", ""), id="422 torn JSON"),
        pytest.param(response(b"[1]", "422 No"), Invalid("InternalServerError", ""), id="422 array"),
        pytest.param(response(b"null", "422 No"), Invalid("InternalServerError", ""), id="422 null"),
        pytest.param(response(b'{"name":{}}', "422 No"), Invalid("unreadable", ""), id="422 name is an object"),
        pytest.param(response(b'{"name":null,"message":[]}', "422 No"), Invalid("unreadable", ""), id="422 nulls"),
        pytest.param(response(b"slow down", "429 No", HTML), Throttled(60, 60, ""), id="429 HTML"),
        pytest.param(
            response(b"slow down", "429 No", HTML, "Retry-After: 9"), Throttled(9, 9, ""), id="429 HTML with a hint"
        ),
        pytest.param(response(b"\xff\xfe\xfa", "503 No"), Unclear(""), id="503 garbage"),
        pytest.param(response(b"", "504 Gateway Timeout", HTML), Unclear(""), id="504 empty"),
    ],
)
def test_answers_nobody_promised(provider_at: At, answer: bytes, expected: Answer) -> None:
    with RawServer(answering(answer)) as server:
        assert bare(provider_at(server.url("")).send(request_of(), KEY, 10)) == expected


def test_a_403_without_a_readable_sender_is_permanent(provider_at: At) -> None:
    body = b'{"statusCode":403,"name":"validation_error","message":"no"}'
    with RawServer(answering(response(body, "403 Forbidden"))) as server:
        answer = provider_at(server.url("")).send(b'{"from":"nobody"}', KEY, 10)
    assert answer == Invalid("validation_error", "403 validation_error: no")


def test_the_service_s_words_are_cut_short(provider_at: At) -> None:
    body = json.dumps({"statusCode": 422, "name": "validation_error", "message": "u@example.test " * 100}).encode()
    with RawServer(answering(response(body, "422 No"))) as server:
        answer = provider_at(server.url("")).send(request_of(), KEY, 10)
    assert isinstance(answer, Invalid)
    assert len(answer.error) == ERROR_LENGTH


def test_a_torn_connection_says_nothing_of_the_outcome(provider_at: At) -> None:
    with RawServer(lambda sock: read_request(sock) and None) as server:
        assert isinstance(provider_at(server.url("")).send(request_of(), KEY, 10), Unclear)
