"""What a job is: a kind and everything that is decided by it."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from notif.envelope import explain
from notif.errors import InvalidEnvelope, UnknownKind, UnknownQueue, WrongLane, nearest
from notif.lanes import Lane, parse_queue, queue_of

FENCE_LIFETIME = timedelta(days=7)
"""How long a fence is kept at least; the seed leaves it open (ADR)."""
MAX_RUNTIME = timedelta(minutes=1)
"""How long a claim is renewed; then its worker counts as lost."""
TOO_LATE_AFTER = timedelta(days=3)
"""A transactional kind without `max_age` becomes a dead letter `too_late` after this long; nothing is dropped by default."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One entry under `kinds:`. `template` is None where the data is the message itself."""

    name: str
    lane: Lane
    model: type[BaseModel]
    channels: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    template: str | None = None
    to: str = "to"
    sender: str | None = None
    max_age: timedelta | None = None
    fence_ttl: timedelta = FENCE_LIFETIME
    max_runtime: timedelta = MAX_RUNTIME
    resend_unknown: bool = False
    schema_hash: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema_hash", schema_hash(self.model))

    @property
    def expiry(self) -> Literal["expired", "too_late", "never"]:
        """What becomes of a job that waited past its age."""
        if self.max_age is not None:
            return "expired"
        return "too_late" if self.lane is Lane.TRANSACTIONAL else "never"

    @property
    def age(self) -> timedelta | None:
        """How long a job may wait, from when it is first due; None for ever."""
        return self.max_age or (TOO_LATE_AFTER if self.lane is Lane.TRANSACTIONAL else None)

    @property
    def all_queues(self) -> tuple[str, ...]:
        return (*(queue_of(channel, self.lane) for channel in self.channels), *self.queues)

    def target(self, channel: str | None) -> tuple[str, ...]:
        """Queues of a job: all of the kind's, or one channel's beside the kind's own queues. Raises UnknownQueue."""
        if channel is None:
            return self.all_queues
        if channel not in self.channels:
            raise UnknownQueue(
                f"channel: kind {self.name!r} has no channel {channel!r}; {nearest(channel, self.channels)}"
            )
        return (queue_of(channel, self.lane), *self.queues)

    def check_queue(self, queue: str) -> None:
        """Raises WrongLane or UnknownQueue unless `queue` is one of the kind's."""
        if queue in self.all_queues:
            return
        parsed = parse_queue(queue)
        if parsed and parsed[0] in self.channels:
            right = queue_of(parsed[0], self.lane)
            raise WrongLane(
                f"queue: kind {self.name!r} travels the {self.lane} lane; use {right!r} instead of {queue!r}"
            )
        raise UnknownQueue(f"queue: kind {self.name!r} does not go to {queue!r}; {nearest(queue, self.all_queues)}")

    def parse(self, data: dict[str, Any]) -> BaseModel:
        """The data as the kind's model. Raises InvalidEnvelope naming the field."""
        try:
            return self.model.model_validate(data)
        except ValidationError as error:
            raise InvalidEnvelope(f"data of {self.name!r}: {explain(error)}") from None


class Kinds:
    """The kinds there are. Built once in the composition root and handed to the App."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def __contains__(self, name: str) -> bool:
        return name in self._kinds

    def get(self, name: str) -> Kind:
        """Raises UnknownKind with the nearest name."""
        if name not in self._kinds:
            raise UnknownKind(f"kind: {name!r} is not configured; {nearest(name, self._kinds)}")
        return self._kinds[name]


def schema_hash(model: type[BaseModel]) -> str:
    """Sixteen hex digits that change when the model does: a row keeps the hash it was published under."""
    schema = json.dumps(model.model_json_schema(), sort_keys=True)
    return hashlib.sha256(schema.encode()).hexdigest()[:16]
