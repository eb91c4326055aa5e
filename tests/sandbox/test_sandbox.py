"""The sandbox, over HTTP by hand: what it refuses, what it breaks, what it remembers."""

import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from notif.sandbox import Sandbox, SandboxClient

MAIL: dict[str, Any] = {
    "from": "Acme <n@acme.test>",
    "to": ["u@example.test"],
    "subject": "Hi",
    "text": "hi",
    "tags": [{"name": "job", "value": "j-1"}, {"name": "n", "value": "0"}],
}
HEADERS = {"authorization": "Bearer re_x", "user-agent": "test", "content-type": "application/json"}


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """Raw HTTP to a sandbox, and its control."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.control = SandboxClient(url)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in (HEADERS if headers is None else headers).items():
                connection.putheader(name, value)
            connection.putheader("content-length", str(len(content or b"")))
            connection.endheaders(content)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def send(self, key: str | None = None, head: dict[str, str] | None = None, **changes: Any) -> Answer:
        extra = {} if key is None else {"idempotency-key": key}
        mail = {name: value for name, value in {**MAIL, **changes}.items() if value is not None}
        return self.call("POST", "/emails", mail, {**HEADERS, **extra, **(head or {})})


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sandbox(clock: Clock) -> Iterator[Caller]:
    with Sandbox(clock=clock) as running:
        yield Caller(running.url)


@contextmanager
def started(act: Callable[[], object]) -> Iterator[None]:
    """`act` runs in a thread meanwhile and has ended afterwards."""
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def test_a_mail_arrives(sandbox: Caller) -> None:
    answer = sandbox.send("k1", html="<p>hi</p>", cc="c@example.test", headers={"X-Order": "7"})
    assert (answer.status, list(answer.json)) == (200, ["id"])
    (mail,) = sandbox.control.mails()
    assert mail == {
        "n": 1,
        "id": answer.json["id"],
        "key": "k1",
        "at": "2027-01-15T08:00:00.000Z",
        "from": "Acme <n@acme.test>",
        "to": ["u@example.test"],
        "cc": ["c@example.test"],
        "bcc": [],
        "reply_to": [],
        "subject": "Hi",
        "html": "<p>hi</p>",
        "text": "hi",
        "headers": {"X-Order": "7"},
        "tags": {"job": "j-1", "n": "0"},
    }
    got = sandbox.call("GET", f"/emails/{mail['id']}", {})
    assert got.json["last_event"] == "delivered"
    assert got.json["to"] == ["u@example.test"]
    assert sandbox.control.counts() == {"mails": 1, "requests": 2, "held": 0, "incidents": 0}
    assert sandbox.control.mails(after=1) == []
    assert [entry["path"] for entry in sandbox.control.requests(after=1)] == [f"/emails/{mail['id']}"]


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("no from", {"from": None}, 422, "missing_required_field"),
    ("no to", {"to": []}, 422, "missing_required_field"),
    ("no subject", {"subject": ""}, 422, "missing_required_field"),
    ("no body", {"text": None}, 422, "validation_error"),
    ("bad from", {"from": "Acme"}, 422, "validation_error"),
    ("bad to", {"to": ["nobody"]}, 422, "validation_error"),
    ("51 recipients", {"to": [f"u{n}@example.test" for n in range(51)]}, 422, "validation_error"),
    ("bad reply_to", {"reply_to": 7}, 422, "validation_error"),
    ("tag alphabet", {"tags": [{"name": "job", "value": "a:b"}]}, 422, "validation_error"),
    ("tags as an object", {"tags": {"job": "1"}}, 422, "validation_error"),
    ("76 tags", {"tags": [{"name": f"t{n}", "value": "1"} for n in range(76)]}, 422, "validation_error"),
    ("headers as an array", {"headers": []}, 422, "validation_error"),
]


@pytest.mark.parametrize(("changes", "status", "name"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_message_is_checked(sandbox: Caller, changes: dict[str, Any], status: int, name: str) -> None:
    answer = sandbox.send("k", **changes)
    assert answer.json.keys() == {"statusCode", "name", "message"}
    assert (answer.status, answer.json["statusCode"], answer.json["name"]) == (status, status, name)
    assert sandbox.control.mails() == []
    assert sandbox.send("k").status == 200  # a refusal uses up no key


def test_fifty_recipients_and_75_tags_pass(sandbox: Caller) -> None:
    tags = [{"name": f"t{n}", "value": "1"} for n in range(75)]
    assert sandbox.send(to=[f"u{n}@example.test" for n in range(50)], tags=tags).status == 200


@pytest.mark.parametrize(
    ("headers", "status", "name"),
    [
        ({"authorization": ""}, 401, "missing_api_key"),
        ({"authorization": "Basic re_x"}, 401, "missing_api_key"),
        ({"authorization": "Bearer sk_live"}, 401, "validation_error"),
        ({"authorization": "Bearer re_bad_1"}, 401, "validation_error"),
        ({"authorization": "Bearer re_restricted_1"}, 401, "restricted_api_key"),
        ({"authorization": "Bearer re_invalid_1"}, 403, "invalid_api_key"),
        ({"authorization": "Bearer re_suspended_1"}, 403, "suspended_api_key"),
        ({"content-type": "text/plain"}, 422, "validation_error"),
        ({"idempotency-key": ""}, 400, "invalid_idempotency_key"),
        ({"idempotency-key": "x" * 257}, 400, "invalid_idempotency_key"),
    ],
)
def test_headers_are_checked(sandbox: Caller, headers: dict[str, str], status: int, name: str) -> None:
    answer = sandbox.send(head=headers)
    assert (answer.status, answer.json["name"]) == (status, name)


def test_a_request_without_user_agent_gets_error_1010(sandbox: Caller) -> None:
    answer = sandbox.send(head={"user-agent": ""})
    assert (answer.status, answer.body) == (403, b"error code: 1010")


@pytest.mark.parametrize(
    ("method", "path", "status", "name"),
    [
        ("GET", "/emails", 405, "method_not_allowed"),
        ("GET", "/emails/none", 404, "not_found"),
        ("POST", "/domains", 404, "not_found"),
    ],
)
def test_other_paths(sandbox: Caller, method: str, path: str, status: int, name: str) -> None:
    answer = sandbox.call(method, path, {})
    assert (answer.status, answer.json["name"]) == (status, name)


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff\xfe"])
def test_a_body_that_is_no_object(sandbox: Caller, body: bytes) -> None:
    assert sandbox.call("POST", "/emails", body).json["name"] == "validation_error"


def test_one_key_one_mail_for_24_hours(sandbox: Caller, clock: Clock) -> None:
    first = sandbox.send("k")
    clock.now += 24 * 3600 - 1
    again = sandbox.send("k")
    assert again.body == first.body
    other = sandbox.send("k", subject="Other")
    assert (other.status, other.json["name"]) == (409, "invalid_idempotent_request")
    clock.now += 2
    assert sandbox.send("k").json["id"] != first.json["id"]
    assert len(sandbox.control.mails()) == 2


def test_without_a_key_every_request_is_a_mail(sandbox: Caller) -> None:
    assert sandbox.send().body != sandbox.send().body
    assert [mail["key"] for mail in sandbox.control.mails()] == ["", ""]


def test_the_rate_limit_is_a_fixed_second(sandbox: Caller, clock: Clock) -> None:
    sandbox.control.limits(rate=2)
    clock.now += 0.25
    answers = [sandbox.send() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[2].json["name"] == "rate_limit_exceeded"
    assert answers[2].headers["retry-after"] == answers[2].headers["ratelimit-reset"] == "1"
    assert {answer.headers["ratelimit-limit"] for answer in answers} == {"2"}
    assert "retry-after" not in answers[0].headers
    clock.now += 0.75
    assert sandbox.send().status == 200
    sandbox.control.limits(rate=None)
    assert [sandbox.send().status for _ in range(5)] == [200] * 5


def test_limits_change_one_by_one(sandbox: Caller) -> None:
    sandbox.control.limits(unverified=["Acme.test"])
    sandbox.control.limits(rate=100)
    answer = sandbox.send()
    assert (answer.status, answer.json["name"]) == (403, "validation_error")
    assert "acme.test domain is not verified" in answer.json["message"]
    assert answer.headers["ratelimit-limit"] == "100"
    sandbox.control.limits(unverified=[])
    assert sandbox.send().status == 200


def outcome(sandbox: Caller, *args: Any, **kwargs: Any) -> int | str:
    """Status, or what became of the connection."""
    try:
        return sandbox.send(*args, **kwargs).status
    except (http.client.HTTPException, OSError) as error:
        return type(error).__name__


@pytest.mark.parametrize(
    ("fault", "seen", "arrived"),
    [
        ({"fault": "429"}, 429, 0),
        ({"fault": "500"}, 500, 0),
        ({"fault": "500", "effect": True}, 500, 1),
        ({"fault": "500", "status": 503}, 503, 0),
        ({"fault": "error", "status": 451, "name": "security_error"}, 451, 0),
        ({"fault": "html_502"}, 502, 0),
        ({"fault": "html_502", "effect": True}, 502, 1),
        ({"fault": "reset_before"}, "ConnectionResetError", 0),
        ({"fault": "reset_after"}, "ConnectionResetError", 1),
        ({"fault": "truncated"}, "IncompleteRead", 1),
        ({"fault": "latency", "seconds": 0.01}, 200, 1),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_faults(sandbox: Caller, fault: dict[str, Any], seen: int | str, arrived: int) -> None:
    sandbox.control.faults([fault])
    assert outcome(sandbox, "k") == seen
    assert len(sandbox.control.mails()) == arrived
    assert outcome(sandbox, "k") == 200
    assert len(sandbox.control.mails()) == 1
    broken, whole = sandbox.control.requests()
    assert (broken["fault"], broken["status"]) == (
        fault["fault"],
        seen if isinstance(seen, int) else (200 if seen == "IncompleteRead" else None),
    )
    assert (whole["fault"], whole["status"], whole["body_hash"]) == (None, 200, broken["body_hash"])


def test_a_fault_s_words_and_headers(sandbox: Caller) -> None:
    sandbox.control.faults(
        [
            {"fault": "429", "name": "daily_quota_exceeded", "message": "enough", "seconds": 7},
            {"fault": "429", "headers": {"Retry-After": "0.5"}},
            {"fault": "html_502", "headers": {"X-Cdn": "yes"}},
        ]
    )
    quota, mixed, html = sandbox.send(), sandbox.send(), sandbox.send()
    assert quota.json == {"statusCode": 429, "name": "daily_quota_exceeded", "message": "enough"}
    assert (quota.headers["retry-after"], quota.headers["ratelimit-reset"]) == ("7", "7")
    assert mixed.headers["retry-after"] == "0.5"
    assert html.headers["content-type"] == "text/html"
    assert html.headers["x-cdn"] == "yes"


def test_the_script_is_used_up_in_order_by_what_fits(sandbox: Caller) -> None:
    sandbox.control.faults(
        [
            {"fault": "500", "match": {"to": "a@example.test"}},
            {"fault": "429", "match": {"subject": "Hi", "job": "j-1"}, "times": 2},
            {"fault": "error", "status": 418, "path": "/emails/x"},
            {"fault": "html_502", "times": None},
        ]
    )
    assert sandbox.send(subject="Other").status == 502
    assert sandbox.send(to=["b@example.test", "a@example.test"]).status == 500
    assert [sandbox.send().status for _ in range(3)] == [429, 429, 502]
    assert sandbox.call("GET", "/emails/x").status == 418
    assert sandbox.call("GET", "/emails/x").status == 502
    sandbox.control.faults([])
    assert sandbox.send().status == 200


def test_a_hang_lasts_until_the_client_has_had_enough(sandbox: Caller) -> None:
    sandbox.control.faults([{"fault": "hang"}])
    address = sandbox.url.removeprefix("http://").split(":")
    body = json.dumps(MAIL).encode()
    with socket.create_connection((address[0], int(address[1])), 0.3) as sock:
        sock.sendall(b"POST /emails HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert sandbox.control.wait_for_requests(1)[0]["status"] is None
    assert sandbox.control.mails() == []


def test_hold_takes_effect_and_keeps_the_answer_back(sandbox: Caller) -> None:
    sandbox.control.faults([{"fault": "hold"}])
    answers: list[Answer] = []
    with started(lambda: answers.append(sandbox.send("k"))):
        sandbox.control.wait_for_held()
        (entry,) = sandbox.control.requests()
        assert (entry["held"], entry["status"], entry["fault"]) == (True, None, "hold")
        assert len(sandbox.control.mails()) == 1
        replay = sandbox.send("k")
        assert sandbox.control.release() == 1
    assert [answer.body for answer in answers] == [replay.body]
    assert sandbox.control.requests()[0]["held"] is False
    assert sandbox.control.release() == 0


def test_hold_before_keeps_the_effect_back(sandbox: Caller) -> None:
    sandbox.control.faults([{"fault": "hold_before"}])
    answers: list[Answer] = []
    with started(lambda: answers.append(sandbox.send("k"))):
        sandbox.control.wait_for_held()
        assert sandbox.control.mails() == []
        meanwhile = sandbox.send("k")
        assert (meanwhile.status, meanwhile.json["name"]) == (409, "concurrent_idempotent_requests")
        assert sandbox.control.release() == 1
    assert answers[0].status == 200
    assert sandbox.send("k").body == answers[0].body
    assert len(sandbox.control.mails()) == 1


def test_a_held_request_of_a_client_that_died_still_takes_effect(sandbox: Caller) -> None:
    sandbox.control.faults([{"fault": "hold_before"}])
    host, port = sandbox.url.removeprefix("http://").split(":")
    body = json.dumps(MAIL).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode()
    sock = socket.create_connection((host, int(port)))
    sock.sendall(b"POST /emails HTTP/1.1\r\n%scontent-length: %d\r\n\r\n" % (head, len(body)) + body)
    sandbox.control.wait_for_held()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    sandbox.control.release()
    assert len(sandbox.control.wait_for_mails(1)) == 1


@pytest.mark.parametrize("fault", ["hold", "hold_before", "latency"])
def test_reset_forgets_everything_and_ends_what_waits(sandbox: Caller, fault: str) -> None:
    sandbox.send("old")
    sandbox.control.limits(rate=1, unverified=["acme.test"])
    sandbox.control.faults([{"fault": fault, "seconds": 3600, "path": "/api/v3/incidents"}, {"fault": "500"}])
    ends: list[str] = []

    def raise_incident() -> None:
        try:
            sandbox.call("POST", "/api/v3/incidents", {})
        except OSError as error:
            ends.append(type(error).__name__)

    with started(raise_incident):
        sandbox.control.wait_for_requests(2)
        if fault != "latency":
            sandbox.control.wait_for_held()
        sandbox.control.reset()
    assert ends == ["ConnectionResetError"]
    assert sandbox.control.counts() == {"mails": 0, "requests": 0, "held": 0, "incidents": 0}
    assert [sandbox.send("old", subject="Other").status for _ in range(3)] == [200] * 3


def test_stopping_ends_what_waits(clock: Clock) -> None:
    with Sandbox(clock=clock) as running:
        sandbox = Caller(running.url)
        sandbox.control.faults([{"fault": "hold_before"}, {"fault": "hang"}])
        ends: list[int | str] = []
        threads = [threading.Thread(target=lambda: ends.append(outcome(sandbox))) for _ in range(2)]
        for thread in threads:
            thread.start()
        sandbox.control.wait_for_requests(2)
        sandbox.control.wait_for_held()
    for thread in threads:
        thread.join(30)
    assert len(ends) == 2
    assert all(isinstance(end, str) for end in ends)


def test_incidents(sandbox: Caller) -> None:
    raised = sandbox.call("POST", "/api/v3/incidents", {"summary": "on fire", "requester_email": "o@acme.test"})
    assert raised.status == 201
    assert raised.json["data"]["type"] == "incident"
    incident = raised.json["data"]["id"]
    resolve = f"/api/v3/incidents/{incident}/resolve"
    assert [sandbox.call("POST", resolve, {"resolved_by": "me"}).status for _ in range(2)] == [200, 409]
    assert sandbox.call("POST", "/api/v3/incidents/999/resolve", {}).status == 404
    assert sandbox.call("POST", "/api/v3/incidents", {}, {"user-agent": "x"}).status == 401
    assert sandbox.call("POST", "/api/v3/incidents", b"[").status == 422
    assert sandbox.call("GET", "/api/v3/incidents").status == 405
    (kept,) = sandbox.control.incidents()
    assert (kept["id"], kept["summary"], kept["resolved_by"]) == (incident, "on fire", "me")


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/faults", [{"fault": "500"}, {"fault": "lightning"}], "faults: 1.fault"),
        ("/faults", [{"fault": "500", "tmes": 2}], "0.tmes"),
        ("/faults", [{"fault": "500", "times": 0}], "0.times"),
        ("/faults", {}, "faults"),
        ("/limits", {"rate": 0}, "rate"),
        ("/limits", {"rate": "10"}, "rate"),
        ("/limits", {"unverified": "acme.test"}, "unverified"),
        ("/limits", {"speed": 1}, "limits"),
    ],
)
def test_a_wrong_wish_is_refused_by_its_field(sandbox: Caller, path: str, body: Any, complaint: str) -> None:
    answer = sandbox.call("PUT", f"/_sandbox{path}", body)
    assert answer.status == 422
    assert complaint in answer.json["message"]


def test_an_unknown_control_names_the_nearest(sandbox: Caller) -> None:
    answer = sandbox.call("GET", "/_sandbox/mail")
    assert answer.status == 404
    assert "GET /_sandbox/mails" in answer.json["message"]
    assert sandbox.call("GET", "/_sandbox/mails?after=x").status == 422


@pytest.mark.parametrize(
    "raw",
    [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"],
)
def test_what_is_not_http_gets_a_400(sandbox: Caller, raw: bytes) -> None:
    host, port = sandbox.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        sock.sendall(raw)
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_waits_for_100_continue(sandbox: Caller) -> None:
    answer = sandbox.send(head={"expect": "100-continue"})
    assert answer.status == 200


def test_the_journal_outlives_the_process(tmp_path: Path, clock: Clock) -> None:
    journal = tmp_path / "data" / "sandbox.jsonl"
    with Sandbox(journal=journal, clock=clock) as running:
        first = Caller(running.url).send("k")
        Caller(running.url).send(None, subject="Grüße")
    with journal.open("a") as torn:
        torn.write('{"id":"half')
    with Sandbox(journal=journal, clock=clock) as running:
        sandbox = Caller(running.url)
        assert sandbox.send("k").body == first.body
        assert sandbox.send("k", subject="Other").status == 409
        sandbox.send("k2")
    with Sandbox(journal=journal, clock=clock) as running:
        sandbox = Caller(running.url)
        assert [(mail["n"], mail["key"], mail["subject"]) for mail in sandbox.control.mails()] == [
            (1, "k", "Hi"),
            (2, "", "Grüße"),
            (3, "k2", "Hi"),
        ]
        sandbox.control.reset()
        sandbox.send("k3")
    with Sandbox(journal=journal, clock=clock) as running:
        assert [mail["key"] for mail in Caller(running.url).control.mails()] == ["k3"]


SERVE = """
import sys, pathlib
from notif.sandbox import serve
serve("127.0.0.1", 0, pathlib.Path(sys.argv[1]), ready=lambda url: print(url, flush=True))
"""


def test_a_killed_process_remembers_and_a_terminated_one_exits_0(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path / "journal.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first = Caller(process.stdout.readline().strip()).send("k")
        process.kill()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert Caller(process.stdout.readline().strip()).send("k").body == first.body
        process.terminate()
        assert process.wait(30) == 0


def test_a_taken_port_is_an_error() -> None:
    with Sandbox() as running, pytest.raises(OSError, match="in use"):
        Sandbox(port=int(running.url.rpartition(":")[2])).start()


def test_waiting_in_vain_says_what_is_there(sandbox: Caller) -> None:
    sandbox.send()
    with pytest.raises(TimeoutError, match=r"2 mails were expected .*'mails': 1"):
        sandbox.control.wait_for_mails(2, 0.05)


def test_many_threads_each_arrive_once(sandbox: Caller) -> None:
    def send(worker: int) -> None:
        for n in range(20):
            for _ in range(2):
                sandbox.send(f"{worker}-{n}")

    threads = [threading.Thread(target=send, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mails = sandbox.control.mails()
    assert {mail["key"] for mail in mails} == {f"{worker}-{n}" for worker in range(8) for n in range(20)}
    assert [mail["n"] for mail in mails] == list(range(1, 161))
    assert sandbox.control.counts()["requests"] == 320
