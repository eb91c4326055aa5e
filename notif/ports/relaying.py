"""What the relay needs: what is due, where to put it, and what is closed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from notif.ports.consuming import Reference, Terms


@dataclass(frozen=True, slots=True)
class Closing:
    """A row of `core.provider_state` that is in force. `seconds` None: until a person resumes it."""

    provider: str
    domain: str
    state: str
    reason: str
    seconds: float | None
    transactional_seconds: float | None


class ClosingsPort(Protocol):
    """`core.provider_state`: closed until a time (429, quota), or halted until a person resumes it. Raises Unavailable."""

    def read(self) -> list[Closing]: ...

    def close(self, closing: Closing) -> None:
        """Closings only grow: a shorter one does not end a longer one."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a relay is on one queue: how much may be out, whose turn it is, and from when on it looks."""

    terms: Terms
    window: int
    after: UUID
    watermark: datetime | None
    """Nothing live is due before it, as of the last sweep; None: look at everything."""


@dataclass(frozen=True, slots=True)
class Picked:
    """What one poll raised, in the order to push it, and how much was out on each queue before."""

    refs: list[Reference]
    outstanding: dict[str, int]
    after: dict[str, UUID]
    """Queue → the tenant whose turn it was last, whether its row was pushed or held."""

    def out_after(self, queue: str) -> int:
        """How much is out on a queue now."""
        return self.outstanding.get(queue, 0) + sum(ref.queue == queue for ref in self.refs)


class OutboxPort(Protocol):
    """The relay's door to Postgres. Raises Unavailable."""

    def pick(self, turns: Sequence[Turn]) -> Picked:
        """Raise the generations of what is due and fits the windows: one round trip, one commit."""
        ...

    def requeue(self, queues: Sequence[str]) -> int:
        """Make every pushed row of these queues due at once: a push failed, or Redis was wiped."""
        ...

    def sweep(self, queue: str) -> datetime:
        """The queue's next watermark: the oldest live `due_at`, never younger than 30 s ago."""
        ...


class CarrierPort(Protocol):
    """The relay's door to Redis. Raises Unavailable."""

    def push(self, refs: Sequence[Reference]) -> bool:
        """One script: remove each row's previous id, push the new one. False: the epoch key was missing, Redis was wiped."""
        ...

    def alive(self) -> bool:
        """False if the epoch key was missing; then it is set."""
        ...
