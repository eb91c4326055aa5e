"""OutboxPort, ClosingsPort and CircuitPort: what relay and worker read and write beside single rows."""

from collections.abc import Sequence
from datetime import datetime

from notif.adapters.postgres.database import Database, storable
from notif.ports import Closing, Failure, Picked, Reference, Turn

# Never younger than 30 s ago, by the clock as it is now: it may have gone back since the watermark was taken.
PICK = """
SELECT p.job_id, p.queue, p.tenant_id, p.generation, p.outstanding
FROM unnest(%s::text[], %s::text[], %s::boolean[], %s::integer[], %s::integer[], %s::uuid[], %s::timestamptz[])
     AS t(queue, provider, keyed, attempts, window_, after, watermark)
CROSS JOIN LATERAL core.pick(t.queue, t.provider, t.keyed, t.attempts, t.window_, t.after,
     least(coalesce(t.watermark, '-infinity'), core.clock() - interval '30 seconds')) p
"""


class PostgresOutbox:
    """Several queues are polled in one statement: an idle relay costs one round trip a poll, whatever it serves."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pick(self, turns: Sequence[Turn]) -> Picked:
        columns = (
            [t.terms.queue for t in turns],
            [t.terms.provider for t in turns],
            [t.terms.key_lifetime is not None for t in turns],
            [t.terms.attempts for t in turns],
            [t.window for t in turns],
            [t.after for t in turns],
            [t.watermark for t in turns],
        )
        picked = Picked([], {}, {})
        for job_id, queue, tenant_id, generation, out in self._database.call(PICK, columns):
            if job_id is None:
                picked.outstanding[queue] = out
                continue
            picked.after[queue] = tenant_id
            if generation is not None:
                picked.refs.append(Reference(job_id, queue, tenant_id, generation))
        return picked

    def requeue(self, queues: Sequence[str]) -> int:
        return int(self._database.call("SELECT core.requeue(%s)", (list(queues),))[0][0])

    def sweep(self, queue: str) -> datetime:
        watermark: datetime = self._database.call("SELECT core.watermark(%s)", (queue,))[0][0]
        return watermark


class PostgresClosings:
    """`core.provider_state` through its two functions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> list[Closing]:
        rows = self._database.call(
            "SELECT provider, domain, state, reason, seconds, transactional_seconds, probe_seconds FROM core.closings()"
        )
        return [Closing(*row) for row in rows]

    def close(self, closing: Closing) -> None:
        c = closing
        self._database.call(
            "SELECT core.close_provider(%s, %s, %s, %s, %s, %s)",
            (c.provider, c.domain, c.state, storable(c.reason), c.seconds, c.transactional_seconds),
        )


class PostgresCircuits:
    """CircuitPort, through the functions of `50_providers.sql` and `core.give_back`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, provider: str, reason: str) -> bool:
        return bool(self._database.call("SELECT core.open_circuit(%s, %s)", (provider, storable(reason)))[0][0])

    def probed(self, provider: str, generation: int, outcome: str, reason: str) -> bool:
        arguments = (provider, generation, outcome, storable(reason))
        return bool(self._database.call("SELECT core.probed(%s, %s, %s, %s)", arguments)[0][0])

    def give_back(self, failures: Sequence[Failure]) -> None:
        columns = ([f.job_id for f in failures], [f.queue for f in failures], [f.generation for f in failures])
        self._database.call("SELECT core.give_back(%s, %s, %s)", columns)
