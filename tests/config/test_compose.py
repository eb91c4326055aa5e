"""From kind and data to the message; `delivery` keeps a staging system to itself."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, computed_field

from notif.adapters.jinja import JinjaRenderer
from notif.compose import Composer
from notif.config import Delivery
from notif.envelope import Envelope
from notif.errors import InvalidEnvelope
from notif.examples import OrderShipped
from notif.kinds import Kind
from notif.lanes import Lane
from notif.messages import EmailMessage

TEMPLATES = Path(__file__).parents[2] / "config/templates"
TENANT = UUID("0192d3c4-0000-7000-8000-000000000001")
SHIPPED = Kind(
    name="order.shipped",
    lane=Lane.TRANSACTIONAL,
    model=OrderShipped,
    channels=("email",),
    template="order_shipped",
    to="email",
    sender="Acme <hello@Mail.acme.test>",
)
PLAIN = Kind(name="email.message", lane=Lane.TRANSACTIONAL, model=EmailMessage, channels=("email",))
ORDER = {
    "email": "Jo <jo@b.test>",
    "name": "Jo & <Co>",
    "order_number": "1042",
    "carrier": "DHL",
    "tracking_url": "https://dhl.test/?a=1&b=2",
}
MAIL = {"from": "Acme <a@Shop.acme.test>", "to": ["x@b.test"], "cc": ["y@c.test"], "bcc": "z@d.test"}
MAIL_DATA: dict[str, Any] = {**MAIL, "subject": "Hi", "text": "hello", "headers": {"X-Order": "1"}}


def composer(**delivery: Any) -> Composer:
    return Composer(JinjaRenderer(TEMPLATES), Delivery.model_validate(delivery))


def test_a_kind_with_a_template() -> None:
    message = composer().message(SHIPPED, SHIPPED.parse(ORDER))
    assert message.sender == "Acme <hello@Mail.acme.test>"
    assert message.to == ("Jo <jo@b.test>",)
    assert message.subject == "Your order 1042 is on its way"
    assert message.html
    assert message.text
    assert "Hello Jo &amp; &lt;Co&gt;," in message.html
    assert 'href="https://dhl.test/?a=1&amp;b=2"' in message.html
    assert "Hello Jo & <Co>," in message.text
    assert "https://dhl.test/?a=1&b=2" in message.text
    assert EmailMessage.model_validate(message.model_dump(by_alias=True, mode="json")).subject == message.subject


def test_what_is_optional_may_be_left_out() -> None:
    message = composer().message(SHIPPED, SHIPPED.parse({**ORDER, "tracking_url": None}))
    assert message.html
    assert "Follow" not in message.html


def test_the_data_is_the_message() -> None:
    assert composer().message(PLAIN, PLAIN.parse(MAIL_DATA)) == EmailMessage.model_validate(MAIL_DATA)


def test_computed_fields_are_variables(tmp_path: Path) -> None:
    class Sum(BaseModel):
        to: list[str]
        a: int

        @computed_field  # type: ignore[prop-decorator]
        @property
        def twice(self) -> int:
            return 2 * self.a

    (tmp_path / "sum").mkdir()
    (tmp_path / "sum/subject.txt").write_text("{{ a }} {{ twice }}")
    (tmp_path / "sum/body.txt").write_text("t")
    kind = Kind("sum", Lane.MARKETING, Sum, channels=("email",), template="sum", sender="a@b.test")
    message = Composer(JinjaRenderer(tmp_path), Delivery()).message(
        kind, kind.parse({"to": ["a@b.test", "c@d.test"], "a": 2})
    )
    assert message.subject == "2 4"
    assert message.to == ("a@b.test", "c@d.test")


class Loose(BaseModel):
    to: str | None = None
    name: str


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        (SHIPPED, {**ORDER, "email": "jo"}, "data of 'order.shipped': email: is no e-mail address: "),
        (SHIPPED, {**ORDER, "tracking_url": "javascript:x"}, "data of 'order.shipped': tracking_url: "),
        (SHIPPED, {**ORDER, "colour": "x"}, "data of 'order.shipped': colour: Extra inputs"),
        (PLAIN, {**MAIL_DATA, "tags": {"job": "1"}}, "data of 'email.message': tags: the tag 'job' is notif's own"),
        (PLAIN, {**MAIL_DATA, "to": []}, "data of 'email.message': to: "),
        ("loose", {"to": "nobody", "name": "x"}, "data of 'loose': to: is no e-mail address: "),
        ("loose", {"name": "x"}, "data of 'loose': to: "),
        ("loose", {"to": "a@b.test", "name": "\x07"}, "template loose: subject: holds the control character U+0007"),
        ("loose", {"to": "a@b.test", "name": "x" * 999}, "template loose: subject: String should have at most 998"),
        ("loose", {"to": "a@b.test", "name": ""}, "template loose/subject.txt: the subject came out empty"),
        ("loose", {"to": "a@b.test", "name": "none"}, "template loose: value: html or text: at least one"),
    ],
)
def test_what_check_refuses_at_publish(tmp_path: Path, kind: Kind | str, data: dict[str, Any], sentence: str) -> None:
    checker = composer()
    if isinstance(kind, str):
        (tmp_path / "loose").mkdir()
        (tmp_path / "loose/subject.txt").write_text("{{ name }}")
        (tmp_path / "loose/body.txt").write_text("{% if name != 'none' %}t{% endif %}")
        kind = Kind("loose", Lane.MARKETING, Loose, channels=("email",), template="loose", sender="a@b.test")
        checker = Composer(JinjaRenderer(tmp_path), Delivery())
    with pytest.raises(InvalidEnvelope) as caught:
        checker.check(kind, Envelope.new(TENANT, kind.name, data))
    assert str(caught.value).startswith(sentence)


def test_check_of_a_kind_without_channels_asks_its_model_only() -> None:
    kind = Kind("points", Lane.TRANSACTIONAL, Loose, queues=("loyalty",))
    composer().check(kind, Envelope.new(TENANT, "points", {"name": "x"}))
    with pytest.raises(InvalidEnvelope, match="data of 'points': name: Field required"):
        composer().check(kind, Envelope.new(TENANT, "points", {}))


def test_publishing_learns_the_senders_domain() -> None:
    def domain(kind: Kind, data: dict[str, Any]) -> str:
        return composer().check(kind, Envelope.new(TENANT, kind.name, data))

    assert domain(SHIPPED, ORDER) == "mail.acme.test"
    assert domain(PLAIN, MAIL_DATA) == "shop.acme.test"
    assert domain(PLAIN, {**MAIL_DATA, "from": "a@exämple.test"}) == "xn--exmple-cua.test"
    with pytest.raises(InvalidEnvelope, match="from: Field required"):
        domain(PLAIN, {name: value for name, value in MAIL_DATA.items() if name != "from"})


def test_recipients_are_everybody() -> None:
    assert composer().recipients(SHIPPED, SHIPPED.parse(ORDER)) == ("Jo <jo@b.test>",)
    assert composer().recipients(PLAIN, PLAIN.parse(MAIL_DATA)) == ("x@b.test", "y@c.test", "z@d.test")


@pytest.mark.parametrize(
    ("only", "allowed"),
    [
        ([], True),
        (["@b.test", "@c.test", "@d.test"], True),
        (["x@b.test", "Y@C.test", "d.test"], True),
        (["@b.test"], False),
        (["@b.test", "@c.test"], False),
    ],
)
def test_everybody_must_be_allowed(only: list[str], allowed: bool) -> None:
    assert composer(only=only).allowed(EmailMessage.model_validate(MAIL_DATA).recipients) is allowed


def test_a_redirect_replaces_everybody() -> None:
    redirecting = composer(only=["@acme.test"], redirect_to="Staging <me@acme.test>")
    message = redirecting.message(PLAIN, PLAIN.parse(MAIL_DATA))
    assert message.recipients == ("Staging <me@acme.test>",)
    assert message.headers == {"X-Order": "1", "X-Notif-Redirected-For": "x@b.test, y@c.test, z@d.test"}
    assert message.subject == "Hi"
    assert redirecting.recipients(PLAIN, PLAIN.parse(MAIL_DATA)) == ("Staging <me@acme.test>",)
    assert redirecting.allowed(message.recipients)
    assert not redirecting.allowed(("x@b.test",)), "bytes frozen before the redirect was set"
    assert redirecting.message(SHIPPED, SHIPPED.parse(ORDER)).headers == {"X-Notif-Redirected-For": "jo@b.test"}


@pytest.mark.parametrize("length", [1, 2, 18, 19, 40, 50])
def test_the_header_of_a_redirect_fits_its_line(length: int) -> None:
    many = [f"{'u' * 40}{n}@b.test" for n in range(length)]
    header = composer(redirect_to="me@acme.test").message(PLAIN, PLAIN.parse({**MAIL_DATA, "to": many})).headers
    text = header["X-Notif-Redirected-For"]
    assert len(text) <= 900
    named, _, more = text.partition(" and ")
    assert len(named.split(", ")) + int(more.split()[0] if more else 0) == length + 2


def test_nothing_is_rendered_for_the_cheap_questions() -> None:
    class Untouchable:
        def check(self, template: str, fields: Any) -> None:
            raise AssertionError

        def render(self, template: str, variables: dict[str, Any]) -> dict[str, str]:
            raise AssertionError

    cheap = Composer(Untouchable(), Delivery.model_validate({"only": ["@b.test"]}))
    assert cheap.allowed(cheap.recipients(SHIPPED, SHIPPED.parse(ORDER)))
