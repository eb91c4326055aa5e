"""QueuePort and JobsPort on the outbox: one function call for any number of jobs and tenants."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from notif.adapters.postgres.database import Database, translating
from notif.envelope import Envelope
from notif.ports import CheckerPort, JobStatus, Publication, Session

BATCH = 2_000
"""Jobs per statement: about a megabyte of JSON."""


class OutboxPublisher:
    """Publishes by `core.publish`. With a session it runs inside the caller's transaction, under the caller's rights."""

    def __init__(self, database: Database, checker: CheckerPort, providers: Mapping[str, str] | None = None) -> None:
        """`providers`: queue → its provider, for `status`."""
        self._database, self._checker = database, checker
        self._providers = json.dumps(dict(providers or {}))

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
        """All of `jobs` in one transaction; checked before anything is sent, so that a bad one changes nothing."""
        rows = [row for job in jobs for row in self._checker.rows(job)]
        batches = [json.dumps(rows[at : at + BATCH], allow_nan=False) for at in range(0, len(rows), BATCH)]
        if session is not None:
            with translating():
                for batch in batches:
                    session.execute(text("SELECT core.publish(CAST(:jobs AS jsonb))"), {"jobs": batch})
        elif len(batches) == 1:
            self._database.call("SELECT core.publish(%s::jsonb)", (batches[0],))
        elif batches:
            with self._database.transaction() as connection:
                for batch in batches:
                    connection.exec_driver_sql("SELECT core.publish(%s::jsonb)", (batch,))

    def cancel(self, job_id: UUID) -> dict[str, bool]:
        return dict(self._database.call("SELECT queue, cancelled FROM core.cancel(%s)", (job_id,)))

    def status(self, job_id: UUID) -> list[JobStatus]:
        rows = self._database.call(
            "SELECT job_id, queue, consumer, state, waits_for, until, attempts, history FROM core.status(%s, %s)",
            (job_id, self._providers),
        )
        return [JobStatus(*(*row[:7], tuple(row[7]))) for row in rows]
