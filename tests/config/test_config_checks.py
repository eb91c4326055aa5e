"""Sections that don't go together: one line each, with the field and what would be right."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.files import BASE, KIND, MAIL, RULE, load, merged, refused


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


def test_the_shortest_lease_and_a_sender_of_the_kinds_own_are_right(tmp_path: Path) -> None:
    change = {
        "worker": {"lease": "15s"},
        "channels": {"email": {"from": None}},
        "kinds": {"a.b": {**KIND, **MAIL, "from": "a@b.test"}},
    }
    config = load(tmp_path, yaml.safe_dump(merged(yaml.safe_load(BASE), change)))
    assert config.kinds["a.b"].sender == "a@b.test"


def test_all_problems_at_once(tmp_path: Path) -> None:
    wrong_fields = {"worker": {"threads": 0, "lease": "x"}, "kindz": {}}
    assert [line.split(":")[0] for line in refused(tmp_path, wrong_fields)] == [
        "worker.threads",
        "worker.lease",
        "kindz",
    ]
    wrong_together = {"worker": {"lease": "12s"}, "kinds": {"a": {"lane": "marketing"}}, "guard": {"lease": "1ms"}}
    assert len(refused(tmp_path, wrong_together)) == 3
