"""Every way `config/notif.yaml` can be wrong: one line, with the field and what would be right."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from notif.config import load_config
from notif.config.units import duration, show_duration, show_size, size
from notif.errors import ConfigurationError
from notif.retry import RetryPolicy
from tests.config.files import BASE, KIND, RULE, load, refused


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, BASE)
    assert config.templates == tmp_path / "templates"
    assert config.worker.lease == timedelta(seconds=20)
    assert config.publishing.max_envelope == 262144
    assert config.channels["email"].sender == "Acme <hello@acme.test>"
    assert config.queue_names == ("notif.email.transactional", "notif.email.marketing", "loyalty")
    assert config.provider("notif.email.marketing") == "resend"
    assert config.provider("loyalty") is None
    assert config.consumer("loyalty") == "loyalty.points"
    assert config.consumer("notif.email.marketing") == "notif.email.marketing"


def test_sections_without_content_are_empty(tmp_path: Path) -> None:
    config = load(tmp_path, BASE.replace("loyalty: {consumer: loyalty.points}", "loyalty:") + "retries:\nguard:\n")
    assert config.consumer("loyalty") == "loyalty"
    assert config.retry("loyalty") == RetryPolicy()


def test_the_file_that_ships() -> None:
    config = load_config(Path(__file__).parents[2] / "config/notif.yaml", {"resend"})
    assert list(config.kinds) == ["email.message", "order.shipped"]
    assert config.templates.is_dir()
    assert config.guard.rules[0].max_pause == timedelta(minutes=15)


def test_a_queue_takes_from_the_default_what_it_leaves_out(tmp_path: Path) -> None:
    retries = {
        "default": {"attempts": 8, "justification": "a slow partner"},
        "queues": {"loyalty": {"base": "5s", "justification": "cheap"}},
    }
    config = load(tmp_path, BASE + yaml.safe_dump({"retries": retries}))
    assert config.retry("loyalty") == RetryPolicy(8, 5.0, 3600.0)
    assert config.retry("notif.email.marketing") == RetryPolicy(8, 30.0, 3600.0)


def test_it_is_written_as_it_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, BASE)
    shown = config.model_dump(mode="json", by_alias=True)
    assert shown["worker"]["lease"] == "20s"
    assert shown["publishing"]["max_envelope"] == "256KiB"
    assert load(tmp_path, yaml.safe_dump(shown)) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"kinds": {"order.shipped": {"lane": "transactinal", "channels": ["email"]}}},
            "kinds.order.shipped.lane: 'transactinal' is not allowed; did you mean 'transactional'?",
        ),
        ({"kinds": {"a.b": {"lane": None}}}, "kinds.a.b.lane: is missing"),
        ({"kindz": {}}, "kindz: no such key; did you mean 'kinds'?"),
        ({"kinds": {"a.b": {**KIND, "max-age": "3d"}}}, "kinds.a.b.max-age: no such key; did you mean 'max_age'?"),
        (
            {"kinds": {"a.b": {**KIND, "sender": "a@b.test"}}},
            "kinds.a.b.sender: no such key; known: channels, fence_ttl, ",
        ),
        ({"guard": {"rules": [{**RULE, "mod": "pause"}]}}, "guard.rules.0.mod: no such key; did you mean 'mode'?"),
        (
            {"guard": {"rules": [{**RULE, "mode": "stop"}]}},
            "guard.rules.0.mode: 'stop' is not allowed; known: drain, pause",
        ),
        (
            {"kinds": {"a.b": {**KIND, "channels": "email"}}},
            "kinds.a.b.channels: must be a list, written [one, two], not 'email'",
        ),
        ({"kinds": {"a.b": {**KIND, "channels": ["email", "email"]}}}, "kinds.a.b.channels: 'email' is there twice"),
        (
            {"kinds": {"A b": KIND}},
            "kinds.A b: a name is 1 to 80 characters: a-z, 0-9, '.', '_', '-', the first a letter or digit",
        ),
        (
            {"queues": {"l" * 81: {}}},
            f"queues.{'l' * 81}: a name is 1 to 80 characters: a-z, 0-9, '.', '_', '-', the first a letter or digit",
        ),
        (
            {"queues": {"loyalty": {"consumer": "l" * 81}}},
            "queues.loyalty.consumer: a name is 1 to 80 characters: a-z, 0-9, '.', '_', '-', "
            "the first a letter or digit",
        ),
        (
            {"channels": {"e.mail": {"provider": "resend"}}},
            "channels.e.mail: a channel's name is 1 to 40 characters: a-z, 0-9, '_', '-', the first a letter or digit",
        ),
        ({"kinds": {"a.b": {**KIND, "from": "Acme"}}}, "kinds.a.b.from: is no e-mail address: An email address must"),
        (
            {"kinds": {"a.b": {**KIND, "model": "Order"}}},
            "kinds.a.b.model: 'Order' is no dotted path; write it like shop.mails.OrderShipped",
        ),
        ({"worker": {"lease": 20}}, "worker.lease: 20 has no unit; write 20s for seconds, or another of ms, m, h, d"),
        (
            {"worker": {"lease": "20 seconds"}},
            "worker.lease: '20 seconds' is no duration; write a whole number and a unit, like 250ms, 5s, 15m, 1h or 7d",
        ),
        ({"worker": {"lease": "0s"}}, "worker.lease: must be longer than nothing"),
        ({"worker": {"threads": True}}, "worker.threads: must be a whole number, not True"),
        ({"worker": {"threads": 0}}, "worker.threads: must be greater than or equal to 1, not 0"),
        ({"worker": 8}, "worker: must be a section of keys and values, not 8"),
        ({"guard": {"interval": "99999999999d"}}, "guard.interval: 99999999999d is too long; at most 3650d"),
        ({"retention": {"fence": "6d"}}, "retention.fence: 6d is out of range; it is 7d to 3650d"),
        (
            {"publishing": {"max_envelope": "256kb"}},
            "publishing.max_envelope: '256kb' is no size; write a whole number and a unit, like 512B, 256KiB or 1MiB",
        ),
        (
            {"publishing": {"max_envelope": "64MiB"}},
            "publishing.max_envelope: 64MiB is out of range; it is 1KiB to 16MiB",
        ),
        (
            {"providers": {"resend": {"headroom": 1.5}}},
            "providers.resend.headroom: must be less than or equal to 1, not 1.5",
        ),
        ({"providers": {"resend": {"rate": "ten"}}}, "providers.resend.rate: must be a number, not 'ten'"),
        ({"retries": {"queues": {"loyalty": {"attempts": 9}}}}, "retries.queues.loyalty.justification: is missing"),
        (
            {"retries": {"queues": {"loyalty": {"attempts": 9, "justification": "  "}}}},
            "retries.queues.loyalty.justification: String should have at least 1 character, not '  '",
        ),
        ({"delivery": {"only": ["@@"]}}, "delivery.only.0: is no e-mail address: "),
        ({"tenants": {"overrides": {"acme": {}}}}, "tenants.overrides.acme: must be a valid UUID"),
        ({1: 2}, "1: a key must be text; write it in quotes"),
    ],
)
def test_one_field_is_wrong(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    (line,) = refused(tmp_path, change)
    assert line.startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("worker:\n  threads: 2\n  lease: 20s\n  threads: 3\n", ", line 4, column 3: the key 'threads' is there twice"),
        ("worker: {threads: 2\nguard: {}\n", ", line 2, column 6: expected ',' or '}', but got ':'"),
        ("worker: !!python/object/apply:os.getcwd []", ", line 1, column 9: could not determine a constructor"),
        ("worker: [a\x01]", "is no YAML: "),
        ("", "is empty"),
        ("- a\n- b\n", "the file: must be a section of keys and values"),
    ],
)
def test_it_is_no_yaml(tmp_path: Path, text: str, sentence: str) -> None:
    (line,) = refused(tmp_path, text)
    assert line.startswith(sentence)


def test_a_merge_key_is_no_repetition(tmp_path: Path) -> None:
    rule = "&r {name: a, watch: [notif.email.transactional], pause: [notif.email.marketing]}"
    config = load(tmp_path, f"{BASE}guard: {{rules: [{rule}, {{<<: *r, name: b}}]}}\n")
    assert [rule.name for rule in config.guard.rules] == ["a", "b"]


def test_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent.yaml: no such file; NOTIF_CONFIG names another"):
        load_config(tmp_path / "absent.yaml", {"resend"})
    with pytest.raises(ConfigurationError, match=r"can't be read: Is a directory"):
        load_config(tmp_path, {"resend"})


@pytest.mark.parametrize(
    ("only", "recipient", "covered"),
    [
        ([], "anybody@b.test", True),
        (["a@b.test"], "Jo <A@B.test>", True),
        (["a@b.test"], "c@b.test", False),
        (["@b.test"], "c@b.test", True),
        (["B.test"], "c@b.test", True),
        (["@b.test"], "c@sub.b.test", False),
        (["@b.test"], "b.test@c.test", False),
        (["@exämple.test"], "c@xn--exmple-cua.test", True),
    ],
)
def test_whom_delivery_only_covers(tmp_path: Path, only: list[str], recipient: str, covered: bool) -> None:
    config = load(tmp_path, BASE + yaml.safe_dump({"delivery": {"only": only}}))
    assert config.delivery.covers(recipient) is covered


@given(st.integers(1, 3650 * 86_400_000))
def test_a_duration_is_shown_as_it_is_read(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert duration(show_duration(value)) == value


@given(st.integers(1, 2**24))
def test_a_size_is_shown_as_it_is_read(value: int) -> None:
    assert size(show_size(value)) == value
