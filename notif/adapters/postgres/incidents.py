"""IncidentsPort: what a person should know, and what the alert service has been told of it."""

from collections.abc import Sequence

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
WHERE until > core.clock() AND (state = 'halted' OR until - since > interval '5 minutes')
UNION ALL
SELECT 'trouble:' || role || ':' || lane, role || ' ' || lane || ' is in trouble',
       string_agg(host || ' ' || pid || ': ' || trouble, '; '), 'trouble'
FROM core.process WHERE trouble <> '' AND seen_at > core.clock() - interval '15 seconds' GROUP BY role, lane
"""

OPEN = """
INSERT INTO core.incident (key, title, detail, next_try_at, opened_at)
SELECT a.key, a.title, a.detail, core.clock(), core.clock() FROM unnest(%s::text[], %s::text[], %s::text[]) AS a(key, title, detail)
ON CONFLICT (key) DO UPDATE SET gone_at = NULL, next_try_at = CASE WHEN incident.gone_at IS NULL THEN incident.next_try_at
                                                                   ELSE core.clock() END
"""


class PostgresIncidents:
    """A row outlives its cause until the service has been told that it is gone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def causes(self) -> list[Alert]:
        return [Alert(*row) for row in self._database.call(CAUSES)]

    def reconcile(self, alerts: Sequence[Alert]) -> list[Incident]:
        columns = ([a.key for a in alerts], [a.title for a in alerts], [a.detail for a in alerts])
        with self._database.transaction() as connection:
            connection.exec_driver_sql(OPEN, columns)
            connection.exec_driver_sql(
                "DELETE FROM core.incident WHERE NOT key = ANY (%s) AND provider_id IS NULL AND tries = 0",
                (columns[0],),
            )
            connection.exec_driver_sql(
                "UPDATE core.incident SET gone_at = core.clock(), next_try_at = core.clock() "
                "WHERE NOT key = ANY (%s) AND gone_at IS NULL",
                (columns[0],),
            )
            rows = connection.exec_driver_sql(
                "SELECT key, title, detail, provider_id, tries, gone_at IS NOT NULL FROM core.incident "
                "WHERE next_try_at <= core.clock() AND (provider_id IS NULL) = (gone_at IS NULL) ORDER BY opened_at"
            ).fetchall()
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
