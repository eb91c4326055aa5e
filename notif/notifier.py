"""What product code calls: publish a job, take it back, ask where it is."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from notif.bootstrap.app import App
from notif.envelope import Envelope
from notif.errors import InvalidEnvelope
from notif.kinds import Kinds
from notif.ports import JobsPort, JobStatus, QueuePort, Session


class Notifier:
    """Made once per process; may be used by any number of threads. Publishing needs Postgres, not Redis.

    `queue` is the QueuePort behind it, for what `send` doesn't do (many jobs at once). `close` closes its connections.
    """

    def __init__(
        self, queue: QueuePort, jobs: JobsPort, kinds: Kinds, *, close: Callable[[], None] = lambda: None
    ) -> None:
        self.queue, self.close = queue, close
        self._jobs, self._kinds = jobs, kinds

    @classmethod
    def from_settings(cls, environ: Mapping[str, str] | None = None) -> "Notifier":
        """Read environment and configuration; connects at the first call. Raises ConfigurationError."""
        app = App.from_settings(environ)
        return cls(app.queue, app.queue, app.kinds, close=app.close)

    def send(  # noqa: PLR0913 - the fields of a job, all named
        self,
        *,
        tenant_id: UUID | str,
        kind: str,
        data: dict[str, Any],
        channel: str | None = None,
        session: Session | None = None,
        run_at: datetime | None = None,
        job_id: UUID | str | None = None,
        correlation_id: str | None = None,
    ) -> Envelope:
        """Publish one job to every queue of its kind, or to one channel's (and the kind's own queues).

        With `session` it joins the caller's transaction. Due now, or at `run_at` (zone-aware, at most ten years ahead).
        The same `job_id` with the same content is one job. Raises Rejected, naming the field and the nearest valid choice.
        """
        queues = self._kinds.get(kind).target(channel)
        envelope = Envelope.new(tenant_id, kind, data, job_id=job_id, correlation_id=correlation_id)
        self.queue.publish(queues, envelope, session=session, run_at=run_at)
        return envelope

    def cancel(self, job_id: UUID | str) -> dict[str, bool]:
        """Per queue: taken back (True), or too late (False). Empty: the job is not known."""
        return self._jobs.cancel(_uuid(job_id))

    def status(self, job_id: UUID | str) -> list[JobStatus]:
        """Where the job is at each of its queues: what it waits for, until when, its history. Empty: not known."""
        return self._jobs.status(_uuid(job_id))


def _uuid(job_id: UUID | str) -> UUID:
    try:
        return job_id if isinstance(job_id, UUID) else UUID(job_id)
    except ValueError:
        raise InvalidEnvelope(f"job_id: {job_id!r} is no UUID") from None
