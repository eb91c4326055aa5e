"""From a kind and its data to the message that goes out."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from notif.config import Delivery
from notif.envelope import Envelope, explain
from notif.errors import InvalidEnvelope
from notif.kinds import Kind
from notif.messages import REDIRECTED_FOR, Address, EmailContent, EmailMessage, Recipients, bare, domain_of
from notif.ports import RendererPort

_MAX_HEADER = 900
"""Characters of the redirect's header: RFC 5322 ends a line at 998."""

_recipients: TypeAdapter[tuple[str, ...]] = TypeAdapter(Recipients)
_sender: TypeAdapter[str] = TypeAdapter(Address)


class Composer:
    """Makes e-mail messages; keeps to `delivery`, so that a staging system doesn't write to real people.

    `parsed` is a kind's data as its model, by `Kind.parse`: validated once, for everything that is asked of it.

    Everything here raises InvalidEnvelope, naming the field, when the data doesn't fit its kind.
    """

    def __init__(self, renderer: RendererPort, delivery: Delivery) -> None:
        self._renderer = renderer
        self._delivery = delivery

    def check(self, kind: Kind, envelope: Envelope) -> str:
        """All that can be known at publish: model, addresses, tags and, by a rendering thrown away, the template.

        Answers the domain the message is sent from; empty for a kind without channels.
        """
        parsed = kind.parse(envelope.data)
        return domain_of(self._composed(kind, parsed).sender) if kind.channels else ""

    def message(self, kind: Kind, parsed: BaseModel) -> EmailMessage:
        """The message, rendered, and redirected if `delivery.redirect_to` says so."""
        return self._redirected(self._composed(kind, parsed))

    def recipients(self, kind: Kind, parsed: BaseModel) -> tuple[str, ...]:
        """Everybody the message would really go to (to, cc, bcc), after a redirect; renders nothing."""
        if self._delivery.redirect_to:
            return (self._delivery.redirect_to,)
        return _to(kind, parsed) if kind.template else _as_message(parsed).recipients

    def allowed(self, recipients: Iterable[str]) -> bool:
        """Whether `delivery` lets a request to these go out. Asked of the frozen bytes: they may be another configuration's."""
        to = self._delivery.redirect_to
        return all(self._delivery.covers(one) and (not to or bare(one) == bare(to)) for one in recipients)

    def _composed(self, kind: Kind, parsed: BaseModel) -> EmailMessage:
        if kind.template is None:
            return _as_message(parsed)
        parts = self._renderer.render(kind.template, variables_of(parsed))
        try:
            content = EmailContent.model_validate(parts)
        except ValidationError as error:
            raise InvalidEnvelope(f"template {kind.template}: {explain(error)}") from None
        # Every address is checked by now, the sender at boot; checking again would cost as much as rendering.
        fields: dict[str, Any] = {"from": kind.sender, "to": _to(kind, parsed), **dict(content)}
        return EmailMessage.model_construct(None, **fields)

    def _redirected(self, message: EmailMessage) -> EmailMessage:
        if not self._delivery.redirect_to:
            return message
        headers = {**message.headers, REDIRECTED_FOR: _shortened([bare(one) for one in message.recipients])}
        return message.model_copy(update={"to": (self._delivery.redirect_to,), "cc": (), "bcc": (), "headers": headers})


def variables_of(data: BaseModel) -> dict[str, Any]:
    """What a template sees: the model's fields and computed fields, nested models as objects."""
    return {name: getattr(data, name) for name in variable_names(type(data))}


def variable_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Names a template may use for data of this model."""
    return (*model.model_fields, *model.model_computed_fields)


def _as_message(parsed: BaseModel) -> EmailMessage:
    assert isinstance(parsed, EmailMessage)  # build_kinds lets no other model go without a template
    return parsed


def _to(kind: Kind, parsed: BaseModel) -> tuple[str, ...]:
    try:
        return _recipients.validate_python(getattr(parsed, kind.to))
    except ValidationError as error:
        raise InvalidEnvelope(f"data of {kind.name!r}: {kind.to}: {_why(error)}") from None


def _why(error: ValidationError) -> str:
    return "; ".join(detail["msg"] for detail in error.errors(include_input=False))


def _shortened(addresses: list[str]) -> str:
    """As many as a header line holds, and how many more there were."""
    text = ", ".join(addresses)
    kept = len(addresses)
    while len(text) > _MAX_HEADER:
        kept -= 1
        text = f"{', '.join(addresses[:kept])} and {len(addresses) - kept} more"
    return text
