"""What operators and the maintenance role need."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should look at: one per queue and cause."""

    key: str
    title: str
    detail: str
    kind: Literal["dead_letters", "halt", "circuit", "trouble", "relay", "workers", "unknown_queue", "snapshot"]


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


class ProcessesPort(Protocol):
    """`core.process`."""

    def beat(self, role: str, lane: str, trouble: str = "") -> None:
        """Say that this process is there, and what goes wrong in it again and again: that becomes an alert."""
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

    def take(self) -> list[Incident]:
        """Open what a person should know now (dead letters by queue and cause, halts, quotas, trouble), mark what has gone, and
        answer what is this process' to tell: nobody else is given it for a minute, or until it has failed."""
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
