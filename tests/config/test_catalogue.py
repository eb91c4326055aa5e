"""Kinds are built at boot from models and templates that are there and fit each other."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from notif.adapters.jinja import JinjaRenderer
from notif.catalogue import build_kinds
from notif.config import Config, load_config
from notif.errors import ConfigurationError
from notif.examples import OrderShipped
from notif.kinds import Kinds
from notif.lanes import Lane
from notif.messages import EmailMessage

CONFIG = Path(__file__).parents[2] / "config"
SHIPPED = {
    "lane": "transactional",
    "channels": ["email"],
    "model": "notif.examples.OrderShipped",
    "template": "order_shipped",
    "to": "email",
}


def build(**kinds: dict[str, Any]) -> Kinds:
    config = Config.model_validate(
        {
            "providers": {"resend": {}},
            "channels": {"email": {"provider": "resend", "from": "Acme <hello@acme.test>"}},
            "queues": {"loyalty": {}},
            "kinds": kinds,
            "retention": {"fence": "8d"},
        }
    )
    return build_kinds(config, JinjaRenderer(CONFIG / "templates"))


def refused(**change: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        build(shipped={key: value for key, value in {**SHIPPED, **change}.items() if value is not None})
    return str(caught.value)


def test_the_kinds_that_ship() -> None:
    config = load_config(CONFIG / "notif.yaml", {"resend"})
    kinds = build_kinds(config, JinjaRenderer(config.templates))
    message, shipped = kinds.get("email.message"), kinds.get("order.shipped")
    assert (message.model, message.template, message.sender) == (EmailMessage, None, None)
    assert (shipped.model, shipped.template, shipped.to) == (OrderShipped, "order_shipped", "email")
    assert shipped.sender == config.channels["email"].sender
    assert shipped.max_age == timedelta(days=3)
    assert shipped.all_queues == ("notif.email.transactional",)


def test_what_a_kind_takes_over() -> None:
    own = {**SHIPPED, "from": "Shop <shop@acme.test>", "fence_ttl": "30d", "queues": ["loyalty"], "lane": "marketing"}
    kinds = build(a=SHIPPED, b={**own, "on_unknown": "resend"})
    assert kinds.get("a").sender == "Acme <hello@acme.test>"
    assert kinds.get("a").fence_ttl == timedelta(days=8)
    assert kinds.get("a").resend_unknown is False
    b = kinds.get("b")
    assert (b.lane, b.sender, b.fence_ttl, b.resend_unknown, b.max_age) == (
        Lane.MARKETING,
        "Shop <shop@acme.test>",
        timedelta(days=30),
        True,
        None,
    )
    assert b.all_queues == ("notif.email.marketing", "loyalty")


def test_a_kind_of_the_products_own_queue() -> None:
    kinds = build(points={"lane": "transactional", "queues": ["loyalty"], "model": "notif.examples.OrderShipped"})
    assert kinds.get("points").all_queues == ("loyalty",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"model": "shopp.mails.Order"},
            "kinds.shipped.model: no module 'shopp'; it must be installed, or lie in a folder of PYTHONPATH",
        ),
        (
            {"model": "notif.exmples.OrderShipped"},
            "kinds.shipped.model: no module 'notif.exmples'; did you mean 'notif.examples'?",
        ),
        (
            {"model": "notif.examples.OrderShiped"},
            "kinds.shipped.model: module 'notif.examples' has no 'OrderShiped'; did you mean 'OrderShipped'?",
        ),
        (
            {"model": "notif.examples.HttpUrl"},
            "kinds.shipped.model: 'notif.examples.HttpUrl' is no pydantic model; known: OrderShipped",
        ),
        (
            {"model": "pydantic.BaseModel"},
            "kinds.shipped.model: 'pydantic.BaseModel' is no pydantic model; ",
        ),
        (
            {"to": "mail"},
            "kinds.shipped.to: notif.examples.OrderShipped has no field 'mail'; did you mean 'email'?",
        ),
        ({"to": None}, "kinds.shipped.to: notif.examples.OrderShipped has no field 'to'; known: carrier, email, "),
        (
            {"template": "order_shiped"},
            f"kinds.shipped.template: 'order_shiped' is no folder under {CONFIG / 'templates'}; did you mean 'order_shipped'?",
        ),
        (
            {"model": "notif.messages.EmailMessage", "to": "to"},
            "kinds.shipped.template: order_shipped/subject.txt uses 'order_number', which is no field of the model; ",
        ),
        (
            {"template": None, "to": None},
            "kinds.shipped.template: is missing; notif.examples.OrderShipped is no notif.messages.EmailMessage, "
            "so a message must be made of it",
        ),
    ],
)
def test_what_does_not_fit(change: dict[str, Any], sentence: str) -> None:
    assert refused(**change).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import nowhere_to_be_found", "module '{0}' can't be imported: ModuleNotFoundError: No module named 'nowhere"),
        ("1 / 0", "module '{0}' can't be imported: ZeroDivisionError: division by zero"),
        ("x = (", "module '{0}' can't be imported: SyntaxError: "),
        (
            "from typing import Callable\nfrom pydantic import BaseModel\nclass M(BaseModel):\n    to: Callable[[], int]\n",
            "{0}.M can't be described: ",
        ),
    ],
)
def test_a_products_module_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, sentence: str
) -> None:
    module = re.sub(r"\W", "_", f"product_{tmp_path.name}")
    (tmp_path / f"{module}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        build(a={"lane": "marketing", "queues": ["loyalty"], "model": f"{module}.M"})
    assert str(caught.value).startswith(f"kinds.a.model: {sentence.format(module)}")


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(a={**SHIPPED, "to": "mail"}, b=SHIPPED, c={**SHIPPED, "template": "none"})
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["kinds.a.to", "kinds.c.template"]
