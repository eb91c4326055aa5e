"""What is checked before a job is published, and the row it becomes. Both queue adapters ask here: one place for the rules."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from notif.compose import Composer
from notif.errors import InvalidEnvelope, UnknownQueue, nearest
from notif.kinds import Kinds
from notif.ports import Publication

FARTHEST = timedelta(days=3653)
"""How far ahead `run_at` may lie: ten years."""


class Checker:
    """`consumers`: queue → the name of its consumer. `now` answers zone-aware UTC."""

    def __init__(
        self,
        kinds: Kinds,
        composer: Composer,
        consumers: Mapping[str, str],
        limit: int,
        now: Callable[[], datetime],
    ) -> None:
        self._kinds, self._composer, self._consumers = kinds, composer, consumers
        self._limit, self._now = limit, now

    def rows(self, job: Publication) -> list[dict[str, Any]]:
        """One element for `core.publish` per queue. Raises Rejected: nothing is published then."""
        kind = self._kinds.get(job.envelope.kind)
        if not job.queues:
            raise UnknownQueue(f"queue: none given; kind {kind.name!r} goes to: {', '.join(kind.all_queues)}")
        for queue in job.queues:
            if queue not in self._consumers:
                raise UnknownQueue(f"queue: {queue!r} is not configured; {nearest(queue, self._consumers)}")
            kind.check_queue(queue)
        job.envelope.encoded(self._limit)
        sender_domain = self._composer.check(kind, job.envelope)
        run_at = self._run_at(job.run_at)
        common = {
            **job.envelope.fields(),
            "schema_hash": kind.schema_hash,
            "sender_domain": sender_domain,
            "run_at": run_at and run_at.isoformat(),
            "max_age": kind.age and _seconds(kind.age),
            "expiry": kind.expiry,
            "fence_ttl": _seconds(kind.fence_ttl),
            "resend_unknown": kind.resend_unknown,
        }
        return [{**common, "queue": queue, "consumer": self._consumers[queue]} for queue in dict.fromkeys(job.queues)]

    def _run_at(self, run_at: datetime | None) -> datetime | None:
        if run_at is None:
            return None
        if run_at.tzinfo is None:
            raise InvalidEnvelope("run_at: has no time zone; pass an aware datetime, such as datetime.now(UTC) + …")
        if run_at - self._now() > FARTHEST:
            raise InvalidEnvelope(f"run_at: {run_at.isoformat()} is more than ten years ahead")
        return run_at.astimezone(UTC)


def _seconds(span: timedelta) -> str:
    """An interval that no setting of the server reads otherwise."""
    return f"{span.total_seconds()} seconds"
