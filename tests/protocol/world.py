"""What the jobs of the schedules are, and how they are composed: real kinds and a real composer."""

import itertools
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from notif.compose import Composer
from notif.config import Delivery
from notif.envelope import Envelope, uuid7
from notif.kinds import Kind, Kinds
from notif.lanes import Lane
from notif.messages import EmailMessage
from tests.protocol.stage import LEDGER, TENANTS

PROVIDER = "post"
JOBS = 8


class Note(BaseModel):
    """Data of the kinds that have a template, or none to send."""

    to: str
    text: str


def _kind(name: str, lane: Lane, shape: str, **more: Any) -> Kind:
    if shape == "plain":
        return Kind(name, lane, EmailMessage, channels=("email",), **more)
    if shape == "database":
        return Kind(name, lane, Note, queues=(LEDGER,), **more)
    return Kind(name, lane, Note, channels=("email",), template="note", sender=f"shop@{name}.test", **more)


KINDS = {
    kind.name: kind
    for kind in (
        _kind("order", Lane.TRANSACTIONAL, "plain"),
        _kind("otp", Lane.TRANSACTIONAL, "template", max_age=timedelta(seconds=300), resend_unknown=True),
        _kind("reset", Lane.TRANSACTIONAL, "plain", max_age=timedelta(seconds=3600)),
        _kind("news", Lane.MARKETING, "template"),
        _kind("entry", Lane.MARKETING, "database"),
        _kind("invoice", Lane.TRANSACTIONAL, "template", queues=(LEDGER,)),  # two consumers
    )
}
"""The model's kinds but `chunk`, which comes with blasts."""


def job_id(number: int) -> UUID:
    return uuid7(1_000_000, number)


def envelope(number: int, kind: Kind, content: int) -> Envelope:
    """Job `number`, always the same id; two contents."""
    to, text = recipient(number), f"content {content}"
    data: dict[str, Any] = {"to": to, "text": text}
    if kind.template is None and kind.channels:
        data |= {"from": f"shop@{kind.name}.test", "subject": "note"}
    return Envelope.new(TENANTS[number % 2], kind.name, data, job_id=job_id(number), correlation_id="protocol")


def recipient(number: int) -> str:
    return f"job{number}@example.test"


class Renderer:
    """RendererPort. No two renderings are alike: a request that is rendered twice under one key shows."""

    def __init__(self) -> None:
        self._number = itertools.count()

    def check(self, template: str, fields: Iterable[str]) -> None:
        pass

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, str]:
        return {"subject": "note", "text": f"{variables['text']}, rendering {next(self._number)}"}


class Audience(Composer):
    """`delivery.only`, as a set of those it does not cover, which grows while a schedule is played."""

    def __init__(self) -> None:
        super().__init__(Renderer(), Delivery())
        self.left: set[str] = set()

    def allowed(self, recipients: Iterable[str]) -> bool:
        return not self.left.intersection(recipients)


def kinds() -> Kinds:
    return Kinds(KINDS.values())


def frozen(message: BaseModel, job: UUID) -> bytes:
    return json.dumps({"job": str(job), **message.model_dump(mode="json")}, sort_keys=True).encode()
