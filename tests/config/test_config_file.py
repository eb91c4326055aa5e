"""Every way `config/notif.yaml` can be wrong: one line, with the field and what would be right."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from notif.config import Config, load_config
from notif.config.units import duration, show_duration, show_size, size
from notif.errors import ConfigurationError
from notif.retry import RetryPolicy

BASE = """
providers: {resend: {}}
channels: {email: {provider: resend, from: Acme <hello@acme.test>}}
queues: {loyalty: {consumer: loyalty.points}}
kinds:
  email.message: {lane: transactional, channels: [email]}
"""
KIND = {"lane": "transactional", "channels": ["email"]}
RULE = {"name": "email", "watch": ["notif.email.transactional"], "pause": ["notif.email.marketing"]}
MAIL = {"model": "notif.examples.OrderShipped", "template": "order_shipped", "to": "email"}


def load(folder: Path, text: str) -> Config:
    path = folder / "notif.yaml"
    path.write_text(text)
    return load_config(path, {"resend"})


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


def refused(folder: Path, change: dict[str, Any] | str) -> list[str]:
    """The lines of the error, each without the file's name, which every line must begin with."""
    text = change if isinstance(change, str) else yaml.safe_dump(merged(yaml.safe_load(BASE), change))
    with pytest.raises(ConfigurationError) as caught:
        load(folder, text)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{folder / 'notif.yaml'}") for line in lines)
    return [line.removeprefix(f"{folder / 'notif.yaml'}").removeprefix(": ") for line in lines]


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
    ("change", "sentence"),
    [
        (
            {"providers": {"resnd": {}}},
            "providers.resnd: notif has no adapter for it; did you mean 'resend'?",
        ),
        (
            {"channels": {"email": {"provider": "resnd"}}},
            "channels.email.provider: 'resnd' is not under providers; did you mean 'resend'?",
        ),
        (
            {"kinds": {"a.b": {"lane": "marketing", "channels": ["emial"]}}},
            "kinds.a.b.channels: 'emial' is not under channels; did you mean 'email'?",
        ),
        (
            {"kinds": {"a.b": {**KIND, "queues": ["loyality"]}}},
            "kinds.a.b.queues: 'loyality' is not under queues; did you mean 'loyalty'?",
        ),
        (
            {"kinds": {"a.b": {**KIND, "queues": ["notif.email.marketing"]}}},
            "kinds.a.b.queues: 'notif.email.marketing' is a lane's queue; "
            "name its channel under kinds.a.b.channels instead",
        ),
        ({"kinds": {"a.b": {"lane": "marketing"}}}, "kinds.a.b: goes nowhere; give it channels, queues or both"),
        (
            {"kinds": {"a.b": {"lane": "marketing", "queues": ["loyalty"]}}},
            "kinds.a.b.model: is missing; name the pydantic model of its data, like shop.mails.OrderShipped",
        ),
        (
            {"kinds": {"a.b": {**KIND, "template": "order_shipped"}}},
            "kinds.a.b.model: is missing; name the pydantic model of its data, like shop.mails.OrderShipped",
        ),
        (
            {"kinds": {"a.b": {**MAIL, "lane": "marketing", "queues": ["loyalty"]}}},
            "kinds.a.b.template: a kind without channels sends nothing; leave it out or add channels",
        ),
        (
            {"kinds": {"a.b": {**KIND, "to": "email"}}},
            "kinds.a.b.to: only a kind with a template has it; without one the data is the message",
        ),
        (
            {"kinds": {"a.b": {**KIND, "from": "a@b.test"}}},
            "kinds.a.b.from: only a kind with a template has it; without one the data is the message",
        ),
        (
            {"channels": {"email": {"from": None}}, "kinds": {"a.b": {**KIND, **MAIL}}},
            "kinds.a.b.from: no sender; write one here or as channels.email.from",
        ),
        (
            {"kinds": {"a.b": {**KIND, "fence_ttl": "3d"}}},
            "kinds.a.b.fence_ttl: 3d is shorter than retention.fence (7d), which holds anyway; "
            "leave it out or write more",
        ),
        ({"queues": {"notif.loyalty": {}}}, "queues.notif.loyalty: this name is notif's own; choose another"),
        ({"queues": {"maintenance": {}}}, "queues.maintenance: this name is notif's own; choose another"),
        (
            {"queues": {"points": {"consumer": "loyalty.points"}}},
            "queues.points.consumer: 'loyalty.points' reads 'loyalty' already; a queue has its own",
        ),
        (
            {"queues": {"points": {"consumer": "notif.email.marketing"}}},
            "queues.points.consumer: 'notif.email.marketing' reads 'notif.email.marketing' already; a queue has its own",
        ),
        (
            {"worker": {"lease": "12s"}},
            "worker.lease: 12s is too short for providers.resend.deadline 10s; at least 15s (the deadline and 5s)",
        ),
        (
            {"providers": {"resend": {"deadline": "16s"}}},
            "worker.lease: 20s is too short for providers.resend.deadline 16s; at least 21s (the deadline and 5s)",
        ),
        (
            {"providers": {"resend": {"burst": 2, "reserve": 2}}},
            "providers.resend.reserve: 2 of a burst of 2 leaves marketing nothing; at most 1",
        ),
        (
            {"guard": {"rules": [{**RULE, "watch": ["notif.email.transactionl"]}]}},
            "guard.rules.0.watch: 'notif.email.transactionl' is no transactional queue of a channel; "
            "did you mean 'notif.email.transactional'?",
        ),
        (
            {"guard": {"rules": [{**RULE, "pause": ["notif.email.transactional"]}]}},
            "guard.rules.0.pause: 'notif.email.transactional' is no marketing queue of a channel; "
            "did you mean 'notif.email.marketing'?",
        ),
        ({"guard": {"rules": [RULE, RULE]}}, "guard.rules.1.name: 'email' is there twice"),
        (
            {"guard": {"rules": [{**RULE, "resume_below": 300}]}},
            "guard.rules.0.resume_below: 300 is more than pause_above 200",
        ),
        (
            {"guard": {"rules": [{**RULE, "min_pause": "1h"}]}},
            "guard.rules.0.min_pause: is longer than max_pause 15m",
        ),
        (
            {"guard": {"lease": "250ms"}},
            "guard.lease: must be longer than guard.interval, else every pause lapses before it is renewed",
        ),
        (
            {"retries": {"default": {"attempts": 6}}},
            "retries.default.justification: other numbers than 5 attempts, 30s and 1h need a reason in writing",
        ),
        (
            {"retries": {"default": {"cap": "10s", "justification": "why not"}}},
            "retries.default.cap: is shorter than base 30s",
        ),
        (
            {"retries": {"queues": {"loyalti": {"attempts": 6, "justification": "why not"}}}},
            "retries.queues.loyalti: no such queue; did you mean 'loyalty'?",
        ),
        (
            {"retries": {"queues": {"loyalty": {"base": "2h", "justification": "why not"}}}},
            "retries.queues.loyalty.cap: is shorter than base 2h",
        ),
        (
            {"delivery": {"only": ["@acme.test"], "redirect_to": "me@other.test"}},
            "delivery.redirect_to: delivery.only doesn't let this address through, so nothing would be sent",
        ),
    ],
)
def test_two_sections_disagree(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    assert refused(tmp_path, change) == [sentence]


def test_all_problems_at_once(tmp_path: Path) -> None:
    wrong_fields = {"worker": {"threads": 0, "lease": "x"}, "kindz": {}}
    assert [line.split(":")[0] for line in refused(tmp_path, wrong_fields)] == [
        "worker.threads",
        "worker.lease",
        "kindz",
    ]
    wrong_together = {"worker": {"lease": "12s"}, "kinds": {"a": {"lane": "marketing"}}, "guard": {"lease": "1ms"}}
    assert len(refused(tmp_path, wrong_together)) == 3


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
