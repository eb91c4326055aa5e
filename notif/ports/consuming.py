"""What a worker needs: the row, its claim and settle, and a provider."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from pydantic import BaseModel

from notif.envelope import Envelope
from notif.ports.publishing import Session
from notif.verdict import Answer


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
    attempts: int = 5


@dataclass(frozen=True, slots=True)
class Gated:
    """The gate let it through: the envelope and what is known of it."""

    envelope: Envelope
    schema_hash: str
    sender_domain: str
    request: bytes | None
    attempts: int
    unknown_seconds: float
    """How long workers have not known its kind or model; 0 if this is the first."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The gate, the claim or the last look did not let it through.

    `verdict`: gone (ack) · duplicate, expired, too_late, unrepeatable, foreign (end the row) · closed, circuit, halted,
    domain_halted (wait). `seconds` until it opens again, a circuit's until its next probe; None: not by itself.
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
    probe: bool = False
    """Its call is the one that an open circuit, or a halt, allows."""


@dataclass(frozen=True, slots=True)
class Held:
    """A claim this process holds: until `ends` on its own clock, renewed up to `max_runtime` after the claim."""

    ref: Reference
    generation: int
    max_runtime: timedelta
    ends: float


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

    def renew(self, claims: Sequence[Held], lease: timedelta) -> set[tuple[UUID, str, int]]:
        """Extend the leases that are still held, one call for a whole process; answers which."""
        ...

    def work(self, ref: Reference, generation: int, terms: Terms, work: Callable[[Session], Settlement]) -> str:
        """A database-only consumer's work, its fence and the row's end or move: one transaction.

        What it settles as anything but delivered or suppressed takes the work back first. The state the row came to.
        """
        ...


class PoisonPort(Protocol):
    """Where what is no message, or no envelope, ends."""

    def bury(self, queue: str, consumer: str, message_id: str, ref: Reference | None, raw: bytes, error: str) -> bool:
        """One dead letter with the raw bytes; with its row, if `ref` names one. False: there is one already."""
        ...


class ProviderPort(Protocol):
    """One outside service that takes messages. `key_lifetime` is None for one without idempotency keys."""

    name: str
    key_lifetime: timedelta | None

    def build(self, message: BaseModel, job_id: UUID) -> bytes:
        """The request's bytes, frozen as they are and repeated byte for byte; carries the tags `job` and `n`."""
        ...

    def recipients(self, request: bytes) -> tuple[str, ...]:
        """Everybody these bytes would go to."""
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
