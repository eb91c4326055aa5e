-- What every move of a row is made of. Only the functions of the protocol call these; nobody else may execute them.

-- The last 20 moves, oldest first. STABLE like what it calls: IMMUTABLE it would not be inlined, and run as a query for each row.
CREATE FUNCTION core.remember(history jsonb, state text, note text, at timestamptz) RETURNS jsonb
LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN jsonb_array_length(history) >= 20 THEN history - 0 ELSE history END
         || jsonb_build_object('at', at, 'state', state, 'note', note)
$$;

-- NULL: never, or not by itself.
CREATE FUNCTION core.seconds_until(p_at timestamptz) RETURNS double precision LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_at < 'infinity' THEN extract(epoch FROM p_at - core.clock())::double precision END
$$;

-- What stands against a call to this provider for this row: the whole provider first, then the sender's domain. Nothing does once
-- a probe is due: whoever claims next is the probe, see core.claim.
CREATE FUNCTION core.blocked(p_provider text, p_queue text, p_domain text)
RETURNS TABLE (verdict text, until timestamptz, reason text) LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN s.state = 'halted' AND s.domain <> '' THEN 'domain_halted' ELSE s.state END,
         CASE s.state WHEN 'circuit' THEN s.probe_at ELSE u.until END, s.reason
  FROM core.provider_state s
  CROSS JOIN LATERAL (SELECT CASE WHEN p_queue LIKE '%.transactional' THEN s.transactional_until ELSE s.until END AS until) u
  WHERE s.provider = p_provider AND s.domain IN ('', p_domain) AND u.until > core.clock()
    AND (s.probe_at IS NULL OR s.probe_at > core.clock())
  ORDER BY s.domain LIMIT 1
$$;

-- May the frozen request be sent (again) under its key? Without provider keys never after a call of unknown outcome.
CREATE FUNCTION core.repeatable(o core.outbox, p_key_lifetime interval) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT o.key_since IS NULL OR o.resend_unknown
      OR coalesce(core.clock() - o.key_since < p_key_lifetime - interval '1 hour', false)
$$;

-- Why a row may not be called for now; no row returned: it may. Gate and claim ask the same question, through this one place.
-- Fence and letter are read in one statement: a discard between two statements would show neither.
CREATE FUNCTION core.obstacle(o core.outbox, p_provider text, p_key_lifetime interval)
RETURNS TABLE (verdict text, until timestamptz, reason text) LANGUAGE sql STABLE AS $$
  SELECT v.verdict, v.until, v.reason FROM (
    SELECT 1 AS nr, CASE WHEN f.tenant_id = o.tenant_id THEN 'duplicate' ELSE 'foreign' END AS verdict,
           NULL::timestamptz AS until, 'processed at ' || f.processed_at AS reason
    FROM core.processed_job f WHERE f.job_id = o.job_id AND f.consumer = o.consumer
    UNION ALL
    SELECT 2, CASE WHEN l.tenant_id = o.tenant_id THEN 'duplicate' ELSE 'foreign' END, NULL, 'dead letter ' || l.id || ' is pending'
    FROM core.dead_letters l
    WHERE l.job_id = o.job_id AND l.consumer = o.consumer AND l.status = 'pending_review'
      AND (l.tenant_id = o.tenant_id OR l.cause <> 'foreign')  -- whoever borrowed an id bars nothing for its owner
    UNION ALL
    SELECT 3, o.expiry, NULL, 'older than ' || o.max_age WHERE o.expires_at < core.clock()
    UNION ALL
    SELECT 4, 'unrepeatable', NULL, 'a call''s outcome is unknown and its key no longer holds'
    WHERE NOT core.repeatable(o, p_key_lifetime)
    UNION ALL
    SELECT 5, b.verdict, b.until, b.reason FROM core.blocked(p_provider, o.queue, o.sender_domain) b
  ) v ORDER BY v.verdict <> 'duplicate', v.nr LIMIT 1  -- foreign and given up on already: it ends, another letter has no place
$$;

-- End a row: fence, delivery, row gone, in the caller's transaction. Duplicate writes no fence: there is one, or a letter.
CREATE FUNCTION core.finish(o core.outbox, p_verdict text, p_reason text, p_provider_id text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := core.clock();
  v_expires timestamptz := v_now + greatest(o.fence_ttl, interval '7 days');
BEGIN
  WITH fence AS (
    INSERT INTO core.processed_job (job_id, consumer, tenant_id, cell_id, processed_at, expires_at)
    SELECT o.job_id, o.consumer, o.tenant_id, o.cell_id, v_now, v_expires WHERE p_verdict <> 'duplicate' ON CONFLICT DO NOTHING
  ), row AS (
    DELETE FROM core.outbox WHERE job_id = o.job_id AND queue = o.queue
  )
  INSERT INTO core.delivery (job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, verdict, reason, provider_id,
                             attempts, history, published_at, ended_at, expires_at)
  VALUES (o.job_id, o.queue, o.consumer, o.tenant_id, o.cell_id, o.correlation_id, o.kind, p_verdict, p_reason, p_provider_id,
          o.attempts, core.remember(o.history, p_verdict, p_reason, v_now), o.created_at, v_now, v_expires);
END $$;

-- Give a row up: a pending dead letter that keeps request, key and ambiguity, row gone, in the caller's transaction.
CREATE FUNCTION core.bury(o core.outbox, p_cause text, p_error text, p_raw bytea DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  o.history := core.remember(o.history, 'dead', p_cause, core.clock());
  INSERT INTO core.dead_letters (job_id, queue, consumer, tenant_id, cell_id, correlation_id, payload, raw, attempts, cause,
                                 last_error, outcome, snapshot, created_at)
  VALUES (o.job_id, o.queue, o.consumer, o.tenant_id, o.cell_id, o.correlation_id, o.data, p_raw, o.attempts, p_cause,
          p_error, CASE WHEN o.ambiguous THEN 'unknown' ELSE 'failed' END, to_jsonb(o), core.clock());
  DELETE FROM core.outbox WHERE job_id = o.job_id AND queue = o.queue;
END $$;

-- A verdict that asserts that nothing was sent; with the ambiguity mark nobody can say so, and a person decides.
CREATE FUNCTION core.finish_unsent(o core.outbox, p_verdict text, p_reason text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF o.ambiguous THEN
    PERFORM core.bury(o, p_verdict, p_reason);
    RETURN 'dead';
  END IF;
  PERFORM core.finish(o, p_verdict, p_reason, '');
  RETURN p_verdict;
END $$;

-- Move a row: one generation more, one timer.
CREATE FUNCTION core.move(o core.outbox, p_state text, p_due timestamptz, p_note text) RETURNS void LANGUAGE sql AS $$
  UPDATE core.outbox
  SET state = p_state, due_at = p_due, ready_at = p_due, generation = o.generation + 1, attempts = o.attempts,
      ambiguous = o.ambiguous, key_since = o.key_since, unknown_since = o.unknown_since,
      history = core.remember(o.history, p_state, p_note, core.clock())
  WHERE job_id = o.job_id AND queue = o.queue
$$;
