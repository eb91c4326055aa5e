"""What the relay needs: what is due, where to put it, and what is closed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from notif.ports.consuming import Reference, Terms


@dataclass(frozen=True, slots=True)
class Closing:
    """A row of `core.provider_state` that is in force. `seconds` None: until a probe succeeds, or a person resumes it."""

    provider: str
    domain: str
    state: str
    reason: str
    seconds: float | None
    transactional_seconds: float | None
    probe_seconds: float | None = None
    """Circuit or halt: until the next claim is its probe."""


class ClosingsPort(Protocol):
    """`core.provider_state`: closed until a time (429, quota), its circuit open until a probe succeeds, or halted until a person
    resumes it or a probe succeeds. Raises Unavailable."""

    def read(self) -> list[Closing]: ...

    def close(self, closing: Closing) -> None:
        """Closings only grow: a shorter one does not end a longer one."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A counted attempt whose failure may have been its provider's; `generation`: the row's since."""

    job_id: UUID
    queue: str
    generation: int


class CircuitPort(Protocol):
    """The circuits in `core.provider_state`. Raises Unavailable."""

    def open(self, provider: str, reason: str) -> bool:
        """True: it is open, and was not before."""
        ...

    def probed(self, provider: str, generation: int, outcome: str, reason: str) -> bool:
        """What became of the probe of this generation: accepted, answered, failed, none (no call was made). True: a circuit or
        a halt has ended."""
        ...

    def give_back(self, failures: Sequence[Failure]) -> None:
        """The attempts of rows that still wait for their backoff at this generation; they are due at once."""
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
