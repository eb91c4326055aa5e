-- What the maintenance role does by itself, in batches: nothing here may hold locks for long.

-- Fences past their time, but never one whose job is in the outbox: its row would be sent again. Returns how many went.
CREATE FUNCTION core.clean_fences(p_most integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH gone AS (
    DELETE FROM core.processed_job f USING (
      SELECT x.job_id, x.consumer FROM core.processed_job x
      WHERE x.expires_at < core.clock()
        AND NOT EXISTS (SELECT FROM core.outbox o WHERE o.job_id = x.job_id AND o.consumer = x.consumer)
      ORDER BY x.expires_at LIMIT p_most FOR UPDATE SKIP LOCKED) old
    WHERE f.job_id = old.job_id AND f.consumer = old.consumer RETURNING true)
  SELECT count(*) FROM gone
$$;

CREATE FUNCTION core.clean_deliveries(p_most integer) RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH gone AS (
    DELETE FROM core.delivery d USING (
      SELECT x.job_id, x.id FROM core.delivery x WHERE x.expires_at < core.clock() ORDER BY x.expires_at LIMIT p_most) old
    WHERE d.job_id = old.job_id AND d.id = old.id RETURNING true)
  SELECT count(*) FROM gone
$$;

-- Decided letters past their retention; a pending one is never purged.
CREATE FUNCTION core.clean_letters(p_retention interval, p_most integer) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH gone AS (
    DELETE FROM core.dead_letters l USING (
      SELECT x.id FROM core.dead_letters x
      WHERE x.status <> 'pending_review' AND x.decided_at < core.clock() - p_retention ORDER BY x.decided_at LIMIT p_most) old
    WHERE l.id = old.id RETURNING true)
  SELECT count(*) FROM gone
$$;

CREATE FUNCTION core.clean_processes() RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  DELETE FROM core.process WHERE seen_at < core.clock() - interval '1 minute'
$$;

-- Rows that wait for a halt that is no more: a probe ended it, or it was resumed between a worker's look and its settle. And one row
-- for each halt whose probe is due, unless one of its rows is due already.
CREATE FUNCTION core.wake_halted(p_provider text, p_queues text[]) RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH woken AS (
    UPDATE core.outbox o SET due_at = core.clock(), ready_at = core.clock()
    WHERE o.queue = ANY (p_queues) AND o.state = 'halted' AND o.due_at > core.clock()
      AND NOT EXISTS (SELECT FROM core.provider_state s
                      WHERE s.provider = p_provider AND s.domain IN ('', o.sender_domain) AND s.until > core.clock())
    RETURNING true
  ), probes AS (
    UPDATE core.outbox o SET due_at = core.clock()
    FROM core.provider_state s CROSS JOIN LATERAL (
      SELECT h.job_id, h.queue FROM core.outbox h
      WHERE h.queue = ANY (p_queues) AND h.state = 'halted' AND s.domain IN ('', h.sender_domain) AND h.due_at > core.clock()
        AND NOT EXISTS (SELECT FROM core.blocked(p_provider, h.queue, h.sender_domain)) LIMIT 1) h
    WHERE s.provider = p_provider AND s.until > core.clock() AND s.probe_at <= core.clock()
      AND NOT EXISTS (SELECT FROM core.outbox d WHERE d.queue = ANY (p_queues) AND d.state = 'halted'
                      AND s.domain IN ('', d.sender_domain) AND d.due_at <= core.clock())
      AND o.job_id = h.job_id AND o.queue = h.queue
    RETURNING true)
  SELECT (SELECT count(*) FROM woken) + (SELECT count(*) FROM probes)
$$;
