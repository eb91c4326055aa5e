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


class CheckerPort(Protocol):
    """What every queue adapter asks before it takes a job."""

    def rows(self, job: Publication) -> list[dict[str, Any]]:
        """One element for `core.publish` per queue. Raises Rejected: nothing is published then."""
        ...


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
    attempts: int
    unknown_seconds: float
    """How long workers have not known its kind or model; 0 if this is the first."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The gate, the claim or the last look did not let it through.

    `verdict`: gone (ack) · duplicate, expired, too_late, unrepeatable, foreign (end the row) · closed, halted, domain_halted
    (wait). `seconds` until it opens again; None: not by itself.
    """

    verdict: str
    seconds: float | None = None
    reason: str = ""


GONE = Stop("gone")


@dataclass(frozen=True, slots=True)
class PoisonedRow:
    """A row whose envelope fails its schema."""

    error: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim: the generation it raised, and the request frozen so far."""

    generation: int
    attempts: int
    request: bytes | None
    key: str


@dataclass(frozen=True, slots=True)
class Settlement:
    """Where a row goes: the arguments of `core.settle`, which says what each verdict needs."""

    verdict: str
    wait: float | None = 0.0
    state: str = "ready"
    cause: str = ""
    error: str = ""
    provider_id: str = ""
    refund: bool = False
    ambiguous_since: float | None = None
    """Seconds since the call was started whose outcome is not known; None: there is none."""


class LedgerPort(Protocol):
    """The worker's door to Postgres. Gate is one read; claim, freeze and settle are one round trip and one commit each.

    Everything after the gate changes the row only at the generation it was given. Raises Unavailable.
    """

    def gate(self, ref: Reference, terms: Terms) -> Gated | PoisonedRow | Stop: ...

    def claim(self, ref: Reference, terms: Terms, request: bytes | None) -> Claimed | Stop: ...

    def freeze(self, ref: Reference, generation: int, request: bytes) -> bool:
        """False: the claim is gone."""
        ...

    def settle(self, ref: Reference, generation: int, terms: Terms, settlement: Settlement) -> str:
        """The state the row came to; 'gone' if the generation had moved on, and nothing was written."""
        ...

    def renew(self, claims: Sequence[tuple[Reference, int]], terms: Terms) -> set[tuple[UUID, str]]:
        """Extend the leases that are still held, one call for a whole process; answers which."""
        ...

    def work(self, ref: Reference, generation: int, terms: Terms, work: Callable[[Session], Verdict]) -> Verdict | None:
        """A database-only consumer's work, its fence and the row's end, one transaction.

        Any verdict but Delivered or Suppressed rolls the work back and leaves the row to the caller. None: the claim is gone.
        """
        ...


class PoisonPort(Protocol):
    """Where what is no message, or no envelope, ends."""

    def bury(self, queue: str, consumer: str, message_id: str, ref: Reference | None, raw: bytes, error: str) -> bool:
        """One dead letter with the raw bytes; with its row, if `ref` names one. False: there is one already."""
        ...


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

    def close(self) -> None: ...


class RendererPort(Protocol):
    """Templates: `subject.txt`, `body.html`, `body.txt` in a folder per template."""

    def check(self, template: str, fields: Iterable[str]) -> None:
        """At boot: it is there, and uses no variable but `fields`. Raises ConfigurationError."""
        ...

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, str]:
        """Keys subject, html, text (those whose file exists). Raises InvalidEnvelope naming the variable."""
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


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who the product's customers are."""

    id: UUID
    name: str
    timezone: str
    tier: str
    cell_id: UUID
    active: bool


class TenantsPort(Protocol):
    """`core.tenant`."""

    def add(self, tenant: Tenant) -> None:
        """Raises Refused if the id is taken."""
        ...

    def list(self) -> list[Tenant]: ...

    def get(self, tenant_id: UUID) -> Tenant:
        """Raises NotFound."""
        ...

    def update(self, tenant: Tenant) -> None:
        """Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as a person sees it."""

    id: int
    job_id: UUID | None
    queue: str
    consumer: str
    tenant_id: UUID | None
    correlation_id: str | None
    cause: str
    outcome: str
    attempts: int
    last_error: str
    status: str
    created_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    reason: str | None
    payload: dict[str, Any] | None
    raw: bytes | None
    history: tuple[dict[str, Any], ...]


class LettersPort(Protocol):
    """`core.dead_letters`, for a person. Raises NotFound, Refused (with the reason)."""

    def list(self, *, status: str = "pending_review", most: int = 100) -> list[Letter]:
        """Oldest first; without payload and raw bytes."""
        ...

    def get(self, letter_id: int) -> Letter: ...

    def replay(self, letter_id: int, key_lifetime: timedelta | None, *, accept: bool, who: str) -> UUID:
        """Put the row back. `accept`: a possible duplicate, where no living key protects a repeat."""
        ...

    def discard(self, letter_id: int, *, reason: str, who: str) -> None:
        """Close it and write the fence."""
        ...


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the installation, as it said last."""

    role: str
    lane: str
    pid: int
    host: str
    since: datetime
    seen_seconds: float


class ProcessesPort(Protocol):
    """`core.process`."""

    def beat(self, role: str, lane: str) -> None:
        """Say that this process is there."""
        ...

    def list(self) -> list[Process]:
        """Those that said so within the last 15 s."""
        ...


@dataclass(frozen=True, slots=True)
class Incident:
    """An alert on its way to a person, or told; `provider_id` None: not told yet."""

    alert: Alert
    provider_id: str | None
    tries: int
    gone: bool


class IncidentsPort(Protocol):
    """`core.incident`, and what should be in it."""

    def causes(self) -> list[Alert]:
        """What a person should know now: pending dead letters by queue and cause, halts, quotas."""
        ...

    def reconcile(self, alerts: Sequence[Alert]) -> list[Incident]:
        """Open what is new, mark what has gone, and answer those whose service is still to be told and whose time it is."""
        ...

    def told(self, key: str, provider_id: str) -> None: ...

    def closed(self, key: str) -> None: ...

    def failed(self, key: str, wait: float) -> None:
        """Told again after `wait` seconds."""
        ...


class UpkeepPort(Protocol):
    """What is cleaned, in batches; each answers how many rows went."""

    def clean_fences(self, most: int) -> int: ...

    def clean_deliveries(self, most: int) -> int: ...

    def clean_letters(self, retention: timedelta, most: int) -> int: ...

    def clean_processes(self) -> None: ...

    def wake_halted(self, provider: str, queues: Sequence[str]) -> int: ...


class Log(Protocol):
    """Where a process says what a person may want to read: structlog's methods. Never a payload, an address or a secret."""

    def info(self, event: str, **values: object) -> object: ...

    def warning(self, event: str, **values: object) -> object: ...

    def error(self, event: str, **values: object) -> object: ...

    def exception(self, event: str, **values: object) -> object: ...
