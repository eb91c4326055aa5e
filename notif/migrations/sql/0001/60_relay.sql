-- The relay: what is due, in turn by tenant, within the window. Run by the maintenance role; one commit a poll.

-- Claimed rows whose lease ran out have lost their worker. Those that cannot be repeated, or have no attempt left, end here, open
-- lane or not; the others are pushed again by core.pick: same request, same key. 500 a turn: a crowd of them, after an outage,
-- would hold up everybody's next push for seconds.
CREATE FUNCTION core.end_lost(p_queue text, p_keyed boolean, p_max_attempts integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  o core.outbox;
BEGIN
  FOR o IN SELECT * FROM core.outbox x
           WHERE x.queue = p_queue AND x.state = 'claimed' AND x.due_at <= core.clock()
             AND (x.attempts >= p_max_attempts OR (x.request IS NOT NULL AND NOT p_keyed AND NOT x.resend_unknown))
           ORDER BY x.due_at LIMIT 500 FOR UPDATE SKIP LOCKED LOOP
    IF o.request IS NOT NULL THEN
      o.ambiguous := true;
      o.key_since := coalesce(o.key_since, o.claimed_at);
    END IF;
    PERFORM core.bury(o, 'worker_lost', 'its worker ended or stopped renewing between claim and settle');
  END LOOP;
END $$;

-- Tenants with something waiting that is due, after p_after, at most p_most. One index probe a tenant: the rows a tenant
-- has scheduled for later are stepped over, not read. p_watermark bounds what dead row versions cost.
CREATE FUNCTION core.turn(p_queue text, p_after uuid, p_watermark timestamptz, p_most integer) RETURNS SETOF uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH RECURSIVE turn AS (
    (SELECT o.tenant_id, o.due_at FROM core.outbox o
     WHERE o.queue = p_queue AND o.state || '' NOT IN ('pushed', 'claimed') AND o.tenant_id > p_after AND o.due_at >= p_watermark
     ORDER BY o.tenant_id, o.due_at LIMIT 1)
    UNION ALL
    SELECT n.* FROM turn t CROSS JOIN LATERAL (
      SELECT o.tenant_id, o.due_at FROM core.outbox o
      WHERE o.queue = p_queue AND o.state || '' NOT IN ('pushed', 'claimed') AND o.tenant_id > t.tenant_id AND o.due_at >= p_watermark
      ORDER BY o.tenant_id, o.due_at LIMIT 1) n
  ) SELECT tenant_id FROM turn WHERE due_at <= core.clock() LIMIT p_most
$$;

-- Whose turn it is: tenants with something due, those after p_after first. p_lost: tenants with something out that came due again.
-- Two at least are asked for: with one place left, one tenant must not look as if it were alone.
CREATE FUNCTION core.tenants_due(p_queue text, p_after uuid, p_watermark timestamptz, p_lost uuid[], p_most integer) RETURNS uuid[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_oldest uuid[] := ARRAY(SELECT o.tenant_id FROM core.outbox o
                           WHERE o.queue = p_queue AND o.state NOT IN ('pushed', 'claimed') AND o.due_at BETWEEN p_watermark AND core.clock()
                           ORDER BY o.due_at LIMIT 500);
  v_due uuid[] := v_oldest;
BEGIN
  IF cardinality(v_oldest) = 500 THEN  -- a flood; else all that is due is known, without a walk over those who only wait for later
    v_due := ARRAY(SELECT core.turn(p_queue, p_after, p_watermark, p_most));
    IF cardinality(v_due) < p_most AND p_after > '00000000-0000-0000-0000-000000000000' THEN  -- the turn goes round
      v_due := v_due || ARRAY(SELECT core.turn(p_queue, '00000000-0000-0000-0000-000000000000', p_watermark, p_most));
    END IF;
  END IF;
  RETURN ARRAY(SELECT t FROM (SELECT DISTINCT unnest(v_due || p_lost) AS t) d ORDER BY t <= p_after, t LIMIT p_most);
END $$;

-- Rows of halted sender domains wait for a person, and take no place in the window meanwhile. What was out is left to core.pick,
-- which marks it; an expired one to the gate, which ends it.
CREATE FUNCTION core.hold_halted(p_queue text, p_provider text, p_watermark timestamptz) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH due AS (
    SELECT o.job_id, o.generation, o.sender_domain FROM core.outbox o
    WHERE o.queue = p_queue AND o.state NOT IN ('pushed', 'claimed') AND o.due_at BETWEEN p_watermark AND core.clock()
      AND o.expires_at > core.clock()
    ORDER BY o.due_at LIMIT 1000
  ), held AS (
    SELECT o.job_id, s.reason
    FROM due d
    JOIN core.provider_state s ON s.provider = p_provider AND s.domain = d.sender_domain AND s.domain <> '' AND s.until > core.clock()
                              AND (s.probe_at IS NULL OR s.probe_at > core.clock())
    JOIN core.outbox o ON o.job_id = d.job_id AND o.queue = p_queue AND o.generation = d.generation AND o.due_at <= core.clock()
    FOR UPDATE OF o SKIP LOCKED)
  UPDATE core.outbox o
  SET generation = o.generation + 1, state = 'halted', due_at = o.expires_at,
      history = core.remember(o.history, 'halted', h.reason, core.clock())
  FROM held h WHERE o.job_id = h.job_id AND o.queue = p_queue
$$;

-- Rows past their age, of a queue whose provider takes no request: nothing but this would ever look at them. The 250 that came due
-- first; 250 more from a place that goes through all that is due once a minute [600,000 rows], for a short age may stand behind
-- many long ones; and what was out.
CREATE FUNCTION core.expired(p_queue text, p_watermark timestamptz) RETURNS SETOF uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH oldest AS (
    SELECT o.job_id, o.due_at, o.expires_at FROM core.outbox o
    WHERE o.queue = p_queue AND o.state NOT IN ('pushed', 'claimed') AND o.due_at BETWEEN p_watermark AND core.clock()
    ORDER BY o.due_at LIMIT 250
  ), place AS (
    SELECT min(d.due_at) + (core.clock() - min(d.due_at)) * ((extract(epoch FROM core.clock()) % 60) / 60)::double precision AS at
    FROM oldest d HAVING count(*) = 250
  ), looked_at AS (
    SELECT d.job_id, d.expires_at FROM oldest d
    UNION ALL
    SELECT f.job_id, f.expires_at FROM place p CROSS JOIN LATERAL (
      SELECT o.job_id, o.expires_at FROM core.outbox o
      WHERE o.queue = p_queue AND o.state NOT IN ('pushed', 'claimed') AND o.due_at BETWEEN p.at AND core.clock()
      ORDER BY o.due_at LIMIT 250) f
    UNION ALL
    SELECT o.job_id, o.expires_at FROM core.outbox o
    WHERE o.queue = p_queue AND o.state IN ('pushed', 'claimed') AND o.due_at BETWEEN p_watermark AND core.clock())
  SELECT DISTINCT l.job_id FROM looked_at l WHERE l.expires_at < core.clock()
$$;

-- Raise what is pushed next: one generation more, due again in 20 s. p_window: at most so many rows out (pushed, not yet due); of
-- one tenant at most half of them while another has something due. outstanding counts what was out before (a row of its own);
-- generation NULL: its sender domain is halted, it was held instead of pushed. While the provider takes no request only what has
-- expired is raised, for the gate to end; when a probe is due, one row.
CREATE FUNCTION core.pick(p_queue text, p_provider text, p_keyed boolean, p_max_attempts integer, p_window integer, p_after uuid,
                          p_watermark timestamptz)
RETURNS TABLE (job_id uuid, queue text, tenant_id uuid, generation bigint, outstanding integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_now timestamptz := core.clock();
  v_out integer;
  v_due boolean;
  v_lost uuid[];
  v_tenants uuid[];
  v_share integer;
  v_domains boolean;
  v_expired uuid[] := '{}';
BEGIN
  SELECT (SELECT count(*) FROM core.outbox o WHERE o.queue = p_queue AND o.state = 'pushed' AND o.due_at > v_now),
         (SELECT o.due_at FROM core.outbox o WHERE o.queue = p_queue AND o.state NOT IN ('pushed', 'claimed') AND o.due_at >= p_watermark
          ORDER BY o.due_at LIMIT 1) <= v_now,
         ARRAY(SELECT DISTINCT o.tenant_id FROM core.outbox o
               WHERE o.queue = p_queue AND o.state IN ('pushed', 'claimed') AND o.due_at BETWEEN p_watermark AND v_now)
  INTO v_out, v_due, v_lost;
  IF v_out > 0 THEN
    queue := p_queue;
    outstanding := v_out;
    RETURN NEXT;
  END IF;
  IF v_due IS NOT TRUE AND v_lost = '{}' THEN  -- an idle poll ends here
    RETURN;
  END IF;
  PERFORM core.end_lost(p_queue, p_keyed, p_max_attempts);
  IF EXISTS (SELECT FROM core.provider_state s WHERE s.provider = p_provider AND s.domain = '' AND s.until > v_now AND s.probe_at <= v_now) THEN
    p_window := 1;
  END IF;
  IF v_out >= p_window THEN
    RETURN;
  END IF;
  v_domains := EXISTS (SELECT FROM core.provider_state s WHERE s.provider = p_provider AND s.domain <> '');
  IF EXISTS (SELECT FROM core.blocked(p_provider, p_queue, '')) THEN
    v_expired := ARRAY(SELECT core.expired(p_queue, p_watermark));
  ELSE
    IF v_domains THEN
      PERFORM core.hold_halted(p_queue, p_provider, p_watermark);
    END IF;
    v_tenants := core.tenants_due(p_queue, p_after, p_watermark, v_lost, greatest(2, p_window - v_out));
  END IF;
  IF cardinality(v_tenants || v_expired) = 0 THEN
    RETURN;
  END IF;
  v_share := CASE WHEN cardinality(v_tenants) > 1 THEN (p_window + 1) / 2 ELSE p_window END;
  RETURN QUERY
  WITH mine AS (
    SELECT o.tenant_id, count(*)::integer AS out FROM core.outbox o
    WHERE o.queue = p_queue AND o.state = 'pushed' AND o.due_at > v_now GROUP BY o.tenant_id
  ), lost AS MATERIALIZED (
    SELECT o.job_id, o.tenant_id, o.generation, o.due_at FROM core.outbox o
    WHERE v_lost <> '{}' AND o.queue = p_queue AND o.state IN ('pushed', 'claimed') AND o.due_at BETWEEN p_watermark AND v_now
  ), due AS (
    (SELECT r.job_id, r.generation, row_number() OVER (ORDER BY r.nr, t.place) AS place
    FROM unnest(v_tenants) WITH ORDINALITY AS t(id, place)
    LEFT JOIN mine ON mine.tenant_id = t.id
    -- no more than twice an even share: what is left over is picked by the next poll
    CROSS JOIN LATERAL (SELECT least(greatest(0, v_share - coalesce(mine.out, 0)),
                                     greatest(1, 2 * (p_window - v_out) / cardinality(v_tenants))) AS most) s
    CROSS JOIN LATERAL (
      SELECT d.*, row_number() OVER (ORDER BY d.due_at) AS nr FROM (
        (SELECT o.job_id, o.generation, o.due_at FROM core.outbox o
         WHERE o.queue = p_queue AND o.state || '' NOT IN ('pushed', 'claimed') AND o.tenant_id = t.id
           AND o.due_at BETWEEN p_watermark AND v_now
         ORDER BY o.due_at LIMIT s.most)
        UNION ALL
        SELECT l.job_id, l.generation, l.due_at FROM lost l WHERE l.tenant_id = t.id) d
      ORDER BY d.due_at LIMIT s.most) r
    ORDER BY r.nr, t.place LIMIT p_window - v_out)
    UNION ALL
    (SELECT e.job_id, e.generation, 0 FROM core.outbox e WHERE e.job_id = ANY (v_expired) AND e.queue = p_queue LIMIT p_window - v_out)
  ), locked AS (  -- another relay's rows, and those a settle is about to move, are passed over
    SELECT o.job_id, o.generation, o.sender_domain, o.expires_at, d.place
    FROM core.outbox o JOIN due d ON o.job_id = d.job_id AND o.generation = d.generation
    WHERE o.queue = p_queue AND o.due_at <= v_now
      -- a lost row that core.end_lost left, held by somebody or one of too many, ends next time: it is not pushed once more
      AND NOT (o.state = 'claimed'
               AND (o.attempts >= p_max_attempts OR (o.request IS NOT NULL AND NOT p_keyed AND NOT o.resend_unknown)))
    FOR UPDATE OF o SKIP LOCKED
  ), judged AS (  -- a halted sender domain holds its own rows only, and no longer than they may wait: the gate ends an expired one
    SELECT l.*, CASE WHEN v_domains AND l.expires_at > v_now
                     THEN (SELECT b.reason FROM core.blocked(p_provider, p_queue, l.sender_domain) b) END AS halt
    FROM locked l
  ), raised AS (
    UPDATE core.outbox o
    SET generation = o.generation + 1,
        -- a lost worker may have made its call: same request, same key, and nobody may say it was not sent
        ambiguous = o.ambiguous OR (o.state = 'claimed' AND o.request IS NOT NULL),
        key_since = CASE WHEN o.state = 'claimed' AND o.request IS NOT NULL THEN coalesce(o.key_since, o.claimed_at) ELSE o.key_since END,
        state = CASE WHEN j.halt IS NULL THEN 'pushed' ELSE 'halted' END,
        due_at = CASE WHEN j.halt IS NULL THEN v_now + interval '20 seconds' ELSE o.expires_at END,
        -- pushed again and again while no worker is there: one entry, or the useful ones would be forgotten
        history = CASE WHEN o.state = 'pushed' AND j.halt IS NULL THEN o.history
                       ELSE core.remember(o.history, CASE WHEN j.halt IS NULL THEN 'pushed' ELSE 'halted' END,
                              coalesce(j.halt, CASE o.state WHEN 'claimed' THEN 'its worker was lost' ELSE 'in turn' END), v_now) END
    FROM judged j
    WHERE o.job_id = j.job_id AND o.queue = p_queue AND o.generation = j.generation
    RETURNING o.job_id, o.tenant_id, o.generation, o.state, j.place
  )
  SELECT r.job_id, p_queue, r.tenant_id, CASE WHEN r.state = 'pushed' THEN r.generation END, 0 FROM raised r ORDER BY r.place;
END $$;

-- A failed push, or a wiped Redis: what was pushed is due at once.
CREATE FUNCTION core.requeue(p_queues text[]) RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH moved AS (
    UPDATE core.outbox SET due_at = core.clock()
    WHERE queue = ANY (p_queues) AND state = 'pushed' AND due_at > core.clock() RETURNING true)
  SELECT count(*) FROM moved
$$;

-- The relay's next watermark: the oldest live timer of a queue, never younger than 30 s ago.
CREATE FUNCTION core.watermark(p_queue text) RETURNS timestamptz LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT least((SELECT min(o.due_at) FROM core.outbox o WHERE o.queue = p_queue AND o.state NOT IN ('pushed', 'claimed')),
               (SELECT min(o.due_at) FROM core.outbox o WHERE o.queue = p_queue AND o.state IN ('pushed', 'claimed')),
               core.clock() - interval '30 seconds')
$$;
