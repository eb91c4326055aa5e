"""What goes over the wire to Resend: the same bytes, the same key, few connections."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from uuid import UUID

import pytest
from pydantic import BaseModel

from notif.adapters.http import PooledHttp
from notif.adapters.resend import ResendProvider
from notif.errors import ConfigurationError
from notif.messages import EmailMessage
from notif.sandbox import SandboxClient
from notif.verdict import Accepted
from tests.provider.servers import RawServer, answering, read_request, response

At = Callable[[str], ResendProvider]

JOB = UUID("0192f0c1-2345-7abc-8def-0123456789ab")
ACCEPTED = response(b'{"id":"e1"}')
FULL = {
    "from": "Acme <n@mail.acme.test>",
    "to": ["Zoë <z@example.test>", "u@example.test"],
    "cc": ["c@example.test"],
    "bcc": ["b@example.test"],
    "reply_to": ["r@example.test"],
    "subject": "Grüße",
    "html": "<p>hi</p>",
    "text": "hi",
    "headers": {"X-Order": "7"},
    "tags": {"shop": "eu", "a": "1"},
}
SMALL = {"from": "n@mail.acme.test", "to": ["u@example.test"], "subject": "Hi", "text": "hi"}


@pytest.fixture
def small(provider: ResendProvider) -> bytes:
    return provider.build(EmailMessage.model_validate(SMALL), JOB)


def test_a_whole_message_as_canonical_json(provider: ResendProvider) -> None:
    built = provider.build(EmailMessage.model_validate(FULL), JOB).decode()
    assert built == (
        '{"bcc":["b@example.test"],"cc":["c@example.test"],"from":"Acme <n@mail.acme.test>",'
        '"headers":{"X-Order":"7"},"html":"<p>hi</p>","reply_to":["r@example.test"],"subject":"Grüße",'
        '"tags":[{"name":"job","value":"0192f0c1-2345-7abc-8def-0123456789ab"},{"name":"n","value":"0"},'
        '{"name":"shop","value":"eu"},{"name":"a","value":"1"}],"text":"hi",'
        '"to":["Zoë <z@example.test>","u@example.test"]}'
    )


class Tagged(BaseModel):
    tags: dict[str, str]


def test_our_tags_can_not_be_taken(provider: ResendProvider) -> None:
    built = json.loads(provider.build(Tagged(tags={"x": "1", "n": "9", "job": "other"}), JOB))
    assert built["tags"] == [
        {"name": "job", "value": str(JOB)},
        {"name": "n", "value": "0"},
        {"name": "x", "value": "1"},
    ]


def test_what_is_empty_is_left_out(small: bytes) -> None:
    assert json.loads(small).keys() == {"from", "to", "subject", "text", "tags"}


def test_a_message_arrives_as_it_was_written(provider: ResendProvider, sandbox: SandboxClient) -> None:
    answer = provider.send(provider.build(EmailMessage.model_validate(FULL), JOB), "k", 10)
    (mail,) = sandbox.mails()
    assert answer == Accepted(mail["id"])
    assert mail["tags"] == {"job": str(JOB), "n": "0", **FULL["tags"]}  # type: ignore[dict-item]
    assert {name: mail[name] for name in FULL if name != "tags"} == {k: v for k, v in FULL.items() if k != "tags"}


def test_a_repeat_is_the_same_bytes_under_the_same_key(
    provider: ResendProvider, sandbox: SandboxClient, small: bytes
) -> None:
    sandbox.faults([{"fault": "500", "times": 2}])
    answers = [provider.send(small, f"{JOB}:mail", 10) for _ in range(4)]
    (mail,) = sandbox.mails()
    assert answers[2:] == [Accepted(mail["id"])] * 2
    digest = hashlib.sha256(small).hexdigest()
    assert [(entry["key"], entry["body_hash"]) for entry in sandbox.requests()] == [(f"{JOB}:mail", digest)] * 4


def test_frozen_bytes_go_out_as_they_are_even_if_no_longer_canonical(provider_at: At) -> None:
    frozen = b'{ "to":["u@example.test"],\n"from":"n@acme.test", "n": 1.0, "subject":"\\u00e9"}'
    bodies: list[bytes] = []

    def script(sock: socket.socket) -> None:
        bodies.append(read_request(sock)[1])
        sock.sendall(ACCEPTED)

    with RawServer(script) as server:
        assert provider_at(server.url("")).send(frozen, "k", 10) == Accepted("e1")
    assert bodies == [frozen]


def test_the_headers(provider_at: At, small: bytes) -> None:
    heads: list[list[str]] = []

    def script(sock: socket.socket) -> None:
        heads.append(read_request(sock)[0])
        sock.sendall(ACCEPTED)

    with RawServer(script) as server:
        provider_at(server.url("/")).send(small, "the-key", 10)
    assert heads[0][0] == "POST /emails HTTP/1.1"
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in heads[0][1:])}
    assert headers["idempotency-key"] == "the-key"
    assert headers["authorization"] == "Bearer re_test"
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("resend-python")


@pytest.mark.parametrize("key", ["", "a b", "x" * 257, "é", "a\n"])
def test_an_impossible_key_is_never_sent(
    provider: ResendProvider, sandbox: SandboxClient, small: bytes, key: str
) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        provider.send(small, key, 10)
    assert sandbox.requests() == []


@pytest.mark.parametrize("key", ["", "re_a b", "re_a\n", "ré"])
def test_an_impossible_api_key_does_not_boot(key: str) -> None:
    with pytest.raises(ConfigurationError, match="RESEND_API_KEY"):
        ResendProvider(key)


def test_ten_sends_are_one_connection(provider_at: At, small: bytes) -> None:
    with RawServer(answering(ACCEPTED)) as server:
        provider = provider_at(server.url(""))
        assert [provider.send(small, f"k{n}", 10) for n in range(10)] == [Accepted("e1")] * 10
        assert server.connections == 1


def test_eight_threads_never_need_more_than_eight_connections(provider_at: At, small: bytes) -> None:
    answers = []
    with RawServer(answering(ACCEPTED)) as server:
        provider = provider_at(server.url(""))

        def send() -> None:
            answers.extend([provider.send(small, "k", 30) for _ in range(25)])

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [Accepted("e1")] * 200
        assert server.connections <= 8


def test_a_second_provider_never_lends_its_key_to_the_first(http: PooledHttp, small: bytes) -> None:
    with RawServer(answering(ACCEPTED)) as server:
        first = ResendProvider("re_one", server.url(""), http=http)
        second = ResendProvider("re_two", server.url(""), http=http)
        with pytest.raises(RuntimeError, match="another ResendProvider"):
            first.send(small, "k", 10)
        assert second.send(small, "k", 10) == Accepted("e1")


TRAP = """
import resend
from notif.adapters.resend import ResendProvider
assert resend.api_key == "re_trap"
ResendProvider("re_own")
assert (resend.api_key, resend.api_url) == ("re_own", "https://api.resend.com")
"""


def test_the_environment_decides_nothing() -> None:
    trapped = {**os.environ, "RESEND_API_KEY": "re_trap", "RESEND_API_URL": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-c", TRAP], env=trapped, check=True, timeout=60)
