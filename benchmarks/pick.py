"""The relay's fair pick over a large backlog."""

import time
from uuid import UUID

from benchmarks.figures import median, milliseconds
from benchmarks.report import Size, Step, Table
from benchmarks.rig import QUEUE, Rig
from notif.adapters.postgres.relay import PostgresOutbox
from notif.ports import Reference, Turn
from notif.relay import NOBODY

WINDOW = 250
TENANTS = 200
# Copies of one published row, valid in every column, in the order in which they would have been published.
COPY = """
INSERT INTO core.outbox (job_id, tenant_id, generation, due_at, queue, consumer, cell_id, correlation_id, kind, data, schema_hash,
  content_hash, sender_domain, max_age, expiry, fence_ttl, resend_unknown, state, ready_at, expires_at, history, created_at)
SELECT overlay(o.job_id::text PLACING to_char(n, 'FM000000000000') FROM 25 FOR 12)::uuid,
  overlay(o.tenant_id::text PLACING to_char(n %% %s, 'FM0000') FROM 1 FOR 4)::uuid, nextval('core.generation'),
  o.due_at - interval '1 hour' + n * interval '1 ms',
  o.queue, o.consumer, o.cell_id, o.correlation_id, o.kind, o.data, o.schema_hash,
  o.content_hash, o.sender_domain, o.max_age, o.expiry, o.fence_ttl, o.resend_unknown, o.state, o.ready_at, o.expires_at, o.history,
  o.created_at
FROM (SELECT * FROM core.outbox LIMIT 1) o, generate_series(1, %s) n
"""


def steps(size: Size) -> int:
    del size
    return 2


def pick(rig: Rig, size: Size, step: Step) -> list[Table]:
    """Its one statement again and again, no relay running; what it picked is deleted, as settles would, before the next."""
    step(f"a backlog of {size.backlog:,} rows")
    rig.empty()
    rig.app.queue.publish_many(rig.jobs(1, "order.shipped"))
    rig.rows(COPY, (TENANTS, size.backlog))
    rig.rows("VACUUM ANALYZE core.outbox")
    step(f"{size.picks} picks of {WINDOW} rows")
    seconds, picked = _picks(rig, size.picks)
    rig.empty()
    row = {
        "backlog": size.backlog,
        "tenants": TENANTS,
        "rows a pick": median([len(refs) for refs in picked]),
        "tenants a pick": median([len({ref.tenant_id for ref in refs}) for refs in picked]),
        **milliseconds(seconds),
        "rows/s": round(sum(map(len, picked)) / sum(seconds)),
    }
    return [
        Table("The relay's pick", [row], [f"{size.picks} picks under a window of {WINDOW}, answer received included"])
    ]


def _picks(rig: Rig, count: int) -> tuple[list[float], list[list[Reference]]]:
    outbox, terms = PostgresOutbox(rig.app.maintenance), rig.app.terms(QUEUE)
    watermark = outbox.sweep(QUEUE)
    after: UUID = NOBODY
    seconds, picked = [], []
    for _ in range(count):
        started = time.perf_counter()
        refs = outbox.pick([Turn(terms, WINDOW, after, watermark)]).refs
        seconds.append(time.perf_counter() - started)
        picked.append(refs)
        after = refs[-1].tenant_id
        rig.rows("DELETE FROM core.outbox WHERE state = 'pushed'")
    return seconds, picked
