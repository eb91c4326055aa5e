"""IncidentsPort: what a person should know, and what the alert service has been told of it."""

from collections.abc import Mapping

from notif.adapters.postgres.database import Database
from notif.ports import Alert, Incident

# A closing of minutes is a quota's; one after a 429 lasts a minute at most.
CAUSES = """
SELECT 'dead_letters:' || queue || ':' || cause, 'dead letters: ' || cause || ' on ' || queue,
       count(*) || ' pending since ' || date_trunc('second', min(created_at))
         || '; the latest says: ' || left((array_agg(last_error ORDER BY id DESC))[1], 300), 'dead_letters'
FROM core.dead_letters WHERE status = 'pending_review' GROUP BY queue, cause
UNION ALL
SELECT 'halt:' || provider || ':' || domain, concat_ws(' ', provider, nullif(domain, '')) || ' is ' || state,
       reason || CASE WHEN until = 'infinity' THEN '; when mended: notif resume ' || provider
                        || CASE WHEN domain = '' THEN '' ELSE ' --domain ' || domain END
                      ELSE '; until ' || date_trunc('second', until) END, 'halt'
FROM core.provider_state
WHERE until > core.clock() AND (state = 'halted' OR CASE WHEN until < 'infinity' THEN until - since > interval '5 minutes' END)
UNION ALL
SELECT 'circuit:' || provider, provider || ' keeps failing, its circuit is open',
       reason || '; since ' || date_trunc('second', since) || ', probed every 20 s at least; jobs wait, no attempt is spent',
       'circuit'
FROM core.provider_state WHERE state = 'circuit' AND until > core.clock() AND core.clock() - since > interval '1 minute'
UNION ALL
SELECT 'trouble:' || role || ':' || lane, role || ' ' || lane || ' is in trouble',
       string_agg(host || ' ' || pid || ': ' || trouble, '; '), 'trouble'
FROM core.process WHERE trouble <> '' AND seen_at > core.clock() - interval '15 seconds' GROUP BY role, lane
"""
# A queue that is full waits for its provider, and one that is closed for its opening: what waits in front of an empty one has
# no relay that does its work, and what is out and comes due again and again no worker. What is due on a queue that the
# configuration doesn't name has neither: nobody looks at it.
STALLED = """
WITH RECURSIVE queues (queue) AS (  -- those that have rows: one probe of each index for each
  VALUES (''::varchar)
  UNION ALL
  SELECT (SELECT min(o.queue) FROM (
    (SELECT queue FROM core.outbox WHERE queue > q.queue AND state NOT IN ('pushed', 'claimed') ORDER BY queue LIMIT 1)
    UNION ALL
    (SELECT queue FROM core.outbox WHERE queue > q.queue AND state IN ('pushed', 'claimed') ORDER BY queue LIMIT 1)) o)
  FROM queues q WHERE q.queue IS NOT NULL
)
SELECT 'relay:' || q.queue, 'the relay lags on ' || q.queue,
       'due since ' || date_trunc('second', w.due_at) || ' and not pushed; relays seen: '
         || (SELECT count(*) FROM core.process p WHERE p.role = 'relay' AND p.seen_at > core.clock() - interval '15 seconds'),
       'relay'
FROM unnest(%s::text[], %s::text[]) AS q(queue, provider)
CROSS JOIN LATERAL (SELECT o.due_at FROM core.outbox o WHERE o.queue = q.queue AND o.state NOT IN ('pushed', 'claimed')
                    ORDER BY o.due_at LIMIT 1) w
WHERE w.due_at < core.clock() - interval '30 seconds'
  AND (SELECT count(*) FROM (SELECT FROM core.outbox o WHERE o.queue = q.queue AND o.state = 'pushed' LIMIT 4) x) < 4
  AND NOT EXISTS (SELECT FROM core.provider_state s WHERE s.provider = q.provider AND s.domain = '' AND s.until > core.clock())
UNION ALL
SELECT 'workers:' || q.queue, 'no worker takes ' || q.queue, 'pushed since ' || date_trunc('second', w.ready_at), 'workers'
FROM unnest(%s::text[]) AS q(queue)
CROSS JOIN LATERAL (SELECT min(o.ready_at) AS ready_at FROM core.outbox o WHERE o.queue = q.queue AND o.state = 'pushed') w
WHERE w.ready_at < core.clock() - interval '30 seconds'
  AND NOT EXISTS (SELECT FROM core.process p WHERE p.role = 'worker' AND q.queue = ANY (string_to_array(p.lane, ' '))
                  AND p.seen_at > core.clock() - interval '15 seconds')
UNION ALL
SELECT 'unknown_queue:' || q.queue, q.queue || ' is not in the configuration', 'due since ' || date_trunc('second', w.due_at)
         || ' and read by nobody; add the queue again, or cancel its jobs', 'unknown_queue'
FROM queues q
CROSS JOIN LATERAL (SELECT min(o.due_at) AS due_at FROM (
  (SELECT due_at FROM core.outbox WHERE queue = q.queue AND state NOT IN ('pushed', 'claimed') ORDER BY due_at LIMIT 1)
  UNION ALL
  SELECT due_at FROM core.outbox WHERE queue = q.queue AND state IN ('pushed', 'claimed')) o) w
WHERE q.queue <> ALL (%s::text[]) AND w.due_at < core.clock() - interval '30 seconds'
UNION ALL
SELECT 'snapshot', 'an old snapshot is held',
       'since ' || date_trunc('second', min(held.since)) || ' by ' || string_agg(held.who, ', ')
         || '; while it lives, no dead row version of the outbox can be removed', 'snapshot'
FROM (SELECT xact_start AS since, concat_ws(' ', 'pid', pid, usename, application_name) AS who FROM pg_stat_activity
      WHERE backend_xmin IS NOT NULL AND datname = current_database()
      UNION ALL
      SELECT prepared, 'prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()) held
WHERE held.since < core.clock() - make_interval(secs => %s) HAVING count(*) > 0
"""
OLD_SNAPSHOT = 300.0
"""Seconds. A backup takes a while; an idle session that forgot its transaction takes for ever."""

# What is not told yet tells the latest. What was told and has gone is resolved first, and then opened anew.
OPEN = """
INSERT INTO core.incident (key, title, detail, next_try_at, opened_at)
SELECT a.key, a.title, a.detail, core.clock(), core.clock() FROM unnest(%s::text[], %s::text[], %s::text[]) AS a(key, title, detail)
ON CONFLICT (key) DO UPDATE SET gone_at = NULL, title = excluded.title, detail = excluded.detail WHERE incident.provider_id IS NULL
"""
GONE = """
UPDATE core.incident SET gone_at = core.clock(), next_try_at = CASE WHEN provider_id IS NULL THEN next_try_at ELSE core.clock() END
WHERE NOT key = ANY (%s) AND gone_at IS NULL
"""
# It came and went before it was told. Not while somebody may be telling it: then its answer finds no row, and nobody resolves it.
FORGET = "DELETE FROM core.incident WHERE gone_at IS NOT NULL AND provider_id IS NULL AND next_try_at <= core.clock()"
TAKE = """
UPDATE core.incident SET next_try_at = core.clock() + make_interval(secs => %s)
WHERE key IN (SELECT key FROM core.incident WHERE next_try_at <= core.clock() AND (provider_id IS NULL) = (gone_at IS NULL)
              ORDER BY opened_at LIMIT %s)
RETURNING key, title, detail, provider_id, tries, gone_at IS NOT NULL
"""
LOCK = 0x6E6F746967
"""One process reconciles at a time: what another saw a moment ago would end what is new."""
TAKEN, MOST = 60.0, 5
"""Seconds an incident is one process' to tell, and how many it takes: ten seconds each, and it has finished long before."""


class PostgresIncidents:
    """A row outlives its cause until the service has been told that it is gone."""

    def __init__(
        self, database: Database, queues: Mapping[str, str | None], *, old_snapshot: float = OLD_SNAPSHOT
    ) -> None:
        """`queues`: all there are, each with its provider."""
        self._database, self._old_snapshot = database, old_snapshot
        self._queues, self._providers = list(queues), list(queues.values())

    def take(self) -> list[Incident]:
        with self._database.transaction() as connection:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            alerts = [Alert(*row) for row in connection.exec_driver_sql(CAUSES)]
            watched = (self._queues, self._providers, self._queues, self._queues, self._old_snapshot)
            alerts += [Alert(*row) for row in connection.exec_driver_sql(STALLED, watched)]
            keys = [alert.key for alert in alerts]
            connection.exec_driver_sql(OPEN, (keys, [a.title for a in alerts], [a.detail for a in alerts]))
            connection.exec_driver_sql(GONE, (keys,))
            connection.exec_driver_sql(FORGET)
            rows = connection.exec_driver_sql(TAKE, (TAKEN, MOST)).fetchall()
        kinds = {a.key: a.kind for a in alerts}
        return [Incident(Alert(r[0], r[1], r[2], kinds.get(r[0], "dead_letters")), r[3], r[4], r[5]) for r in rows]

    def told(self, key: str, provider_id: str) -> None:
        self._database.call(
            "UPDATE core.incident SET provider_id = %s, tries = 0, next_try_at = core.clock() WHERE key = %s",
            (provider_id, key),
        )

    def closed(self, key: str) -> None:
        self._database.call("DELETE FROM core.incident WHERE key = %s AND gone_at IS NOT NULL", (key,))

    def failed(self, key: str, wait: float) -> None:
        self._database.call(
            "UPDATE core.incident SET tries = tries + 1, next_try_at = core.clock() + make_interval(secs => %s) WHERE key = %s",
            (wait, key),
        )
