"""Every port, on one page: small Protocols, declared by who needs them. Adapters implement them, bootstrap binds them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol
from uuid import UUID

from pydantic import BaseModel

from notif.envelope import Envelope
from notif.verdict import Answer, Verdict

Session = Any
"""A product's database session: SQLAlchemy's Session or Connection with the publisher's rights."""

Handler = Callable[[Session, Envelope], Verdict]
"""A product's own database-only consumer; runs inside the fence's transaction."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One job for one or more queues, due at `run_at` (now if None)."""

    queues: tuple[str, ...]
    envelope: Envelope
    run_at: datetime | None = None


class QueuePort(Protocol):
    """The one way to publish.

    With `session` it joins the caller's transaction: rolled back means never. Same id and content twice is one job; other
    content raises JobConflict while the row lives. `run_at` is zone-aware, at most ten years ahead. Raises Rejected kinds.
    """

    def publish(
        self,
        queue: str | Sequence[str],
        envelope: Envelope,
        *,
        session: Session | None = None,
        run_at: datetime | None = None,
    ) -> None: ...

    def publish_many(self, jobs: Iterable[Publication], *, session: Session | None = None) -> None: ...

    def schedule(self, queue: str | Sequence[str], envelope: Envelope, run_at: datetime) -> None: ...


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where one job is at one queue."""

    job_id: UUID
    queue: str
    consumer: str
    state: str
    waits_for: str | None
    until: datetime | None
    attempts: int
    history: tuple[dict[str, Any], ...]


class JobsPort(Protocol):
    """What the product may ask of a job it published."""

    def cancel(self, job_id: UUID) -> dict[str, bool]:
        """Per queue: taken back (True), or too late (False). Empty if the id is not known."""
        ...

    def status(self, job_id: UUID) -> list[JobStatus]: ...


@dataclass(frozen=True, slots=True)
class Reference:
    """What travels on Redis: names a row and the generation it had when it was pushed. No personal data."""

    job_id: UUID
    queue: str
    tenant_id: UUID
    generation: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What a queue's configuration adds to the protocol: the one place for its policies."""

    queue: str
    consumer: str
    provider: str | None = None
    key_lifetime: timedelta | None = None
    lease: timedelta = timedelta(seconds=20)
    max_runtime: timedelta = timedelta(minutes=1)
    attempts: int = 5


@dataclass(frozen=True, slots=True)
class Gated:
    """The gate let it through: the envelope and what is known of it."""

    envelope: Envelope
    schema_hash: str
    request: bytes | None
    key_number: int
    attempts: int
    ambiguous: bool
    waited_for_schema: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The gate (or the claim) did not let it through, and why.

    `verdict`: duplicate, expired, too_late, unrepeatable (end the row) · closed, halted, domain_halted (wait) · gone (ack).
    """

    verdict: str
    until: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim: the generation it raised, and the request frozen so far."""

    generation: int
    attempts: int
    request: bytes | None
    key_number: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """Where a claimed (or gated) row goes: see `core.settle`."""

    verdict: str
    wait: float = 0.0
    state: str = "deferred"
    cause: str = ""
    error: str = ""
    provider_id: str = ""
    refund: bool = False
    ambiguous_since: float | None = None
    """Seconds since the call whose outcome is not known was started."""


class LedgerPort(Protocol):
    """The worker's door to Postgres: each method is one round trip; claim, freeze and settle are one commit each."""

    def gate(self, ref: Reference, terms: Terms) -> Gated | Stop: ...

    def claim(self, ref: Reference, terms: Terms, request: bytes | None) -> Claimed | Stop: ...

    def freeze(self, ref: Reference, generation: int, request: bytes) -> bool: ...

    def settle(self, ref: Reference, generation: int, terms: Terms, settlement: Settlement) -> str:
        """The state the row came to; 'gone' if the generation had moved on, and nothing was written."""
        ...

    def renew(self, claims: Sequence[tuple[Reference, int]], terms: Terms) -> set[tuple[UUID, str]]:
        """Extends the leases that are still held; answers which."""
        ...

    def work(self, ref: Reference, generation: int, terms: Terms, work: Callable[[Session], Verdict]) -> str:
        """Database-only: the work, the fence and the row's end in one transaction; the state the row came to."""
        ...


class ClosingsPort(Protocol):
    """`core.provider_state`: closed until a time (429, quota), or halted until a person resumes it."""

    def close(self, provider: str, seconds: float, reason: str) -> None: ...

    def halt(self, provider: str, domain: str, reason: str) -> None: ...

    def blocked(self, provider: str, domain: str) -> Stop | None:
        """What stands against a call right now, from a memory no older than 1 s on this process' clock."""
        ...


class ProviderPort(Protocol):
    """One outside service that takes messages. `key_lifetime` is None for one without idempotency keys."""

    name: str
    key_lifetime: timedelta | None

    def build(self, message: BaseModel, job_id: UUID) -> bytes:
        """The request's bytes, frozen as they are and repeated byte for byte; carries the tags `job` and `n`."""
        ...

    def send(self, request: bytes, key: str, deadline: float) -> Answer:
        """One call, at most `deadline` seconds over the whole exchange. Never raises for what the service did."""
        ...


class RendererPort(Protocol):
    """Templates: `subject.txt`, `body.html`, `body.txt` in a folder per template."""

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, str]:
        """Keys subject, html, text (those whose file exists). Raises InvalidEnvelope naming the variable."""
        ...


@dataclass(frozen=True, slots=True)
class Push:
    """One row to put on its queue; `previous` is the generation whose message it replaces."""

    ref: Reference
    previous: int


class OutboxPort(Protocol):
    """The relay's door to Postgres."""

    def pick(self, terms: Sequence[Terms], windows: Sequence[int], sweep: bool) -> tuple[list[Push], int]:
        """Raise the generations of what is due and fits the windows, one commit; the rows to push and how many are out."""
        ...

    def requeue(self, queues: Sequence[str]) -> int:
        """Make every pushed row of these queues due at once: a push failed, or Redis was wiped."""
        ...


class CarrierPort(Protocol):
    """The relay's door to Redis. Raises Unavailable."""

    def push(self, pushes: Sequence[Push]) -> bool:
        """One script: remove each previous id, push the new one. False if the epoch key was missing (Redis was wiped)."""
        ...

    def alive(self) -> bool:
        """True if the epoch key is there; sets it if not."""
        ...


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should look at: one per queue and cause."""

    key: str
    title: str
    detail: str
    kind: Literal["dead_letters", "halt"]


class AlertPort(Protocol):
    """Tells a person. Never travels the lanes. Raises Unavailable."""

    def open(self, alert: Alert) -> str:
        """Raise an incident; its id at the service."""
        ...

    def resolve(self, incident: str) -> None: ...
