"""What product code needs: to publish, and to ask for what it published."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from notif.envelope import Envelope
from notif.verdict import Verdict

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
