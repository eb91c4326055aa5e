"""QueuePort and JobsPort in memory, for users' tests: the same rules as the outbox, no server."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from notif.envelope import Envelope
from notif.errors import JobConflict, UnknownTenant, nearest
from notif.kinds import Kinds
from notif.ports import CheckerPort, JobStatus, Publication, Session


@dataclass(frozen=True, slots=True)
class MemoryJob:
    """One job on one queue, as it would stand in the outbox."""

    queue: str
    consumer: str
    envelope: Envelope
    due_at: datetime
    state: str


class MemoryQueue:
    """`jobs` holds what was published, oldest first, and committed where a session was given.

    `tenants`: the ids that are known; None: every id is. `join(session, committed, dropped)` follows a session's transaction.
    """

    def __init__(
        self,
        checker: CheckerPort,
        kinds: Kinds,
        *,
        now: Callable[[], datetime],
        join: Callable[[Session, Callable[[], None], Callable[[], None]], None],
        tenants: Collection[UUID] | None = None,
    ) -> None:
        self._checker, self._now, self._join, self._tenants = checker, now, join, tenants
        self.kinds = kinds
        self.jobs: list[MemoryJob] = []
        self._cancelled: set[tuple[UUID, str]] = set()
        self._pending: dict[int, list[MemoryJob]] = {}  # by the session they were published in

    def publish(
        self,
        queue: str | Sequence[str],
        envelope: Envelope,
        *,
        session: Session | None = None,
        run_at: datetime | None = None,
    ) -> None:
        queues = (queue,) if isinstance(queue, str) else tuple(queue)
        self.publish_many([Publication(queues, envelope, run_at)], session=session)

    def schedule(self, queue: str | Sequence[str], envelope: Envelope, run_at: datetime) -> None:
        self.publish(queue, envelope, run_at=run_at)

    def publish_many(self, jobs: Iterable[Publication], *, session: Session | None = None) -> None:
        """All or none, as the outbox does."""
        new: list[MemoryJob] = []
        mine = self._pending.setdefault(id(session), []) if session is not None else []
        for job in jobs:
            for row in self._checker.rows(job):
                self._add(new, mine, job, row)
        if session is None:
            self.jobs += new
            return
        mine += new

        def forget() -> None:
            self._pending[id(session)] = [job for job in self._pending.get(id(session), []) if job not in new]

        def commit() -> None:
            forget()
            self.jobs += new

        self._join(session, commit, forget)

    def cancel(self, job_id: UUID) -> dict[str, bool]:
        answer = {job.queue: (job_id, job.queue) not in self._cancelled for job in self._of(job_id)}
        self._cancelled |= {(job_id, queue) for queue in answer}
        return answer

    def status(self, job_id: UUID) -> list[JobStatus]:
        return [self._status(job) for job in self._of(job_id)]

    def _add(self, new: list[MemoryJob], mine: list[MemoryJob], job: Publication, row: dict[str, Any]) -> None:
        tenant, queue = job.envelope.tenant_id, row["queue"]
        if self._tenants is not None and tenant not in self._tenants:
            raise UnknownTenant(
                f"tenant_id: {tenant} is no active tenant; {nearest(str(tenant), map(str, self._tenants))}"
            )
        living = [one for one in self.jobs if (one.envelope.job_id, one.queue) not in self._cancelled]
        for known in (*living, *mine, *new):
            if (known.envelope.job_id, known.queue) == (job.envelope.job_id, queue):
                if _content(known.envelope) != _content(job.envelope):
                    raise JobConflict(f"job_id: {job.envelope.job_id} is in the outbox on {queue!r} with other content")
                return
        now = self._now()
        due = max(job.run_at or now, now)
        new.append(MemoryJob(queue, row["consumer"], job.envelope, due, "scheduled" if due > now else "ready"))

    def _of(self, job_id: UUID) -> list[MemoryJob]:
        return [job for job in self.jobs if job.envelope.job_id == job_id]

    def _status(self, job: MemoryJob) -> JobStatus:
        cancelled = (job.envelope.job_id, job.queue) in self._cancelled
        state = "cancelled" if cancelled else job.state
        waits = None if cancelled else "its time" if state == "scheduled" else "its turn"
        return JobStatus(job.envelope.job_id, job.queue, job.consumer, state, waits, job.due_at, 0, ())


def _content(envelope: Envelope) -> tuple[UUID, str, dict[str, Any]]:
    return envelope.tenant_id, envelope.kind, envelope.data
