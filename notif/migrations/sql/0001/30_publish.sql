-- The door for the product: publish, cancel, status. SECURITY DEFINER, so that the publisher owns nothing and reads nothing.

-- Every job of the array, or none. Each element: job_id, queue, consumer, tenant_id, correlation_id, kind, data, schema_hash,
-- sender_domain, run_at (null: now), max_age (null: for ever), expiry, fence_ttl, resend_unknown.
-- Raises NT001 (another content lives under this id), NT002 (unknown tenant), NT003 (a bad field). Returns the rows that are new.
CREATE FUNCTION core.publish(p_jobs jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_now timestamptz := core.clock();
  v_name text := '^[a-z0-9][a-z0-9._-]{0,79}$';
  v_bad record;
  v_new integer := 0;
  v_round integer;
BEGIN
  IF jsonb_typeof(p_jobs) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION USING ERRCODE = 'NT003', MESSAGE = 'jobs: must be a JSON array, one object per job and queue';
  END IF;
  SELECT b.* INTO v_bad FROM (
    SELECT j.job_id, j.queue, j.tenant_id, CASE
      WHEN t.id IS NULL THEN 'tenant_id'
      WHEN (j.job_id::text ~ '^.{14}7.{4}[89ab]') IS NOT TRUE THEN 'job_id: must be a UUID of version 7'
      WHEN (j.queue ~ v_name AND j.consumer ~ v_name) IS NOT TRUE THEN 'queue and consumer: must be names of at most 80 characters'
      WHEN (j.kind ~ v_name) IS NOT TRUE THEN 'kind: must be a name of at most 80 characters'
      WHEN (j.correlation_id ~ '^[!-~]{1,128}$') IS NOT TRUE THEN 'correlation_id: must be 1 to 128 printable ASCII characters'
      WHEN (jsonb_typeof(j.data) = 'object') IS NOT TRUE THEN 'data: must be an object'
      WHEN jsonb_path_exists(j.data, '$.**{255}') THEN 'data: is nested deeper than 254 levels'  -- no worker could read it
      WHEN j.run_at !~ '([Zz]|[+-]\d\d(:?\d\d)?)$' THEN 'run_at: has no offset from UTC'  -- else it would be the session''s
      WHEN j.run_at::timestamptz > v_now + interval '10 years 1 day' THEN 'run_at: is more than ten years ahead'
      WHEN (j.expiry IN ('expired', 'too_late', 'never')) IS NOT TRUE THEN 'expiry: must be expired, too_late or never'
      WHEN (length(j.schema_hash) <= 16 AND length(j.sender_domain) <= 255) IS NOT TRUE OR j.fence_ttl IS NULL
        OR j.resend_unknown IS NULL THEN 'schema_hash, sender_domain, fence_ttl, resend_unknown: one is missing or too long'
    END AS problem
    FROM jsonb_to_recordset(p_jobs) AS j(job_id uuid, queue text, consumer text, tenant_id uuid, correlation_id text, kind text,
           data jsonb, schema_hash text, sender_domain text, run_at text, expiry text, fence_ttl interval,
           resend_unknown boolean)
    LEFT JOIN core.tenant t ON t.id = j.tenant_id AND t.active) b
  WHERE b.problem IS NOT NULL LIMIT 1;
  IF FOUND AND v_bad.problem = 'tenant_id' THEN
    RAISE EXCEPTION USING ERRCODE = 'NT002', MESSAGE = coalesce(v_bad.tenant_id::text, 'null'),
      DETAIL = coalesce(core.nearest_tenant(v_bad.tenant_id), '');
  ELSIF FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'NT003', MESSAGE = v_bad.problem,
      DETAIL = format('job %s on %s', v_bad.job_id, v_bad.queue);
  END IF;
  -- A row that was there may end before it is compared: then it is inserted in the next round. More than three is no race.
  FOR v_round IN 1..3 LOOP
    WITH j AS (
      SELECT j.*, t.cell_id, greatest(coalesce(j.run_at, v_now), v_now) AS due, j.run_at > v_now AS later
      FROM jsonb_to_recordset(p_jobs) AS j(job_id uuid, queue text, consumer text, tenant_id uuid, correlation_id text, kind text,
             data jsonb, schema_hash text, sender_domain text, run_at timestamptz, max_age interval, expiry text,
             fence_ttl interval, resend_unknown boolean)
      JOIN core.tenant t ON t.id = j.tenant_id
      ORDER BY j.job_id, j.queue  -- two publishers of the same ids never wait for each other in a circle
    ), new AS (
      INSERT INTO core.outbox (job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, data, schema_hash, content_hash,
                               sender_domain, max_age, expiry, fence_ttl, resend_unknown, state, generation, due_at, ready_at,
                               expires_at, history, created_at)
      SELECT job_id, queue, consumer, tenant_id, cell_id, correlation_id, kind, data, schema_hash,
             core.content_hash(tenant_id, kind, data), sender_domain, max_age, expiry, fence_ttl, resend_unknown,
             CASE WHEN later THEN 'scheduled' ELSE 'ready' END, nextval('core.generation'), due, due,
             coalesce(due + max_age, 'infinity'),
             core.remember('[]', CASE WHEN later THEN 'scheduled' ELSE 'ready' END, 'published', v_now), v_now
      FROM j ON CONFLICT (job_id, queue) DO NOTHING RETURNING job_id
    ) SELECT v_new + count(*) INTO v_new FROM new;
    IF v_new = jsonb_array_length(p_jobs) THEN  -- all of them are new: nothing to compare
      RETURN v_new;
    END IF;
    SELECT j.job_id, j.queue INTO v_bad
    FROM jsonb_to_recordset(p_jobs) AS j(job_id uuid, queue text, tenant_id uuid, kind text, data jsonb)
    JOIN core.outbox o ON o.job_id = j.job_id AND o.queue = j.queue
    WHERE o.content_hash <> core.content_hash(j.tenant_id, j.kind, j.data) LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'NT001', MESSAGE = v_bad.job_id::text, DETAIL = v_bad.queue;
    END IF;
    EXIT WHEN NOT EXISTS (
      SELECT FROM jsonb_to_recordset(p_jobs) AS j(job_id uuid, queue text)
      WHERE NOT EXISTS (SELECT FROM core.outbox o WHERE o.job_id = j.job_id AND o.queue = j.queue));
    IF v_round = 3 THEN
      RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'jobs of these ids come and go; publish again';
    END IF;
  END LOOP;
  RETURN v_new;
END $$;

CREATE FUNCTION core.content_hash(p_tenant uuid, p_kind text, p_data jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT sha256(convert_to(p_tenant || ' ' || p_kind || ' ' || p_data, 'UTF8'))
$$;

-- The active tenant whose id differs in the fewest characters: a typo or a bad copy, among the first thousand.
CREATE FUNCTION core.nearest_tenant(p_id uuid) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT t.id || ' (' || t.name || ')'
  FROM (SELECT id, name FROM core.tenant WHERE active ORDER BY id LIMIT 1000) t
  ORDER BY (SELECT count(*) FROM generate_series(1, 36) i WHERE substr(t.id::text, i, 1) <> substr(p_id::text, i, 1)), t.id LIMIT 1
$$;

-- Per queue: taken back, or too late (claimed, of unknown outcome, processed, or given up on).
CREATE FUNCTION core.cancel(p_job uuid) RETURNS TABLE (queue text, cancelled boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  o core.outbox;
BEGIN
  FOR o IN SELECT * FROM core.outbox x WHERE x.job_id = p_job ORDER BY x.queue FOR UPDATE LOOP
    queue := o.queue;
    cancelled := o.state <> 'claimed' AND NOT o.ambiguous
      AND NOT EXISTS (SELECT FROM core.processed_job f WHERE f.job_id = o.job_id AND f.consumer = o.consumer
                      UNION ALL SELECT FROM core.dead_letters l
                      WHERE l.job_id = o.job_id AND l.consumer = o.consumer AND (l.tenant_id = o.tenant_id OR l.cause <> 'foreign')
                        AND l.status = 'pending_review');
    IF cancelled THEN
      PERFORM core.finish(o, 'cancelled', 'by the product', '');
    END IF;
    RETURN NEXT;
  END LOOP;
  RETURN QUERY
    SELECT e.queue::text, false FROM (
      SELECT d.queue FROM core.delivery d WHERE d.job_id = p_job
      UNION SELECT l.queue FROM core.dead_letters l WHERE l.job_id = p_job AND l.status <> 'replayed') e
    WHERE NOT EXISTS (SELECT FROM core.delivery d WHERE d.job_id = p_job AND d.queue = e.queue AND d.ended_at = core.clock());
END $$;

-- Where a job is, at each of its queues: the living row first, then how it ended. p_providers: queue → its provider, so that a
-- job whose turn has come is said to wait for its provider.
CREATE FUNCTION core.status(p_job uuid, p_providers jsonb DEFAULT '{}') RETURNS TABLE (job_id uuid, queue text, consumer text,
  tenant_id uuid, kind text, state text, waits_for text, until timestamptz, attempts integer, history jsonb, correlation_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT o.job_id, o.queue, o.consumer, o.tenant_id, o.kind,
         CASE WHEN o.state = 'scheduled' AND o.due_at <= core.clock() THEN 'ready' ELSE o.state END,
         CASE WHEN o.state = 'pushed' THEN 'a worker' WHEN o.state = 'claimed' THEN 'its worker''s answer'
              WHEN o.state = 'halted' THEN 'a person: notif resume'
              WHEN o.due_at <= core.clock() THEN coalesce('its provider, ' || CASE b.verdict WHEN 'circuit' THEN 'circuit open' ELSE replace(b.verdict, '_', ' ') END
                                                            || ': ' || b.reason, 'its turn')
              WHEN o.state = 'scheduled' THEN 'its time' WHEN o.state = 'retrying' THEN 'the next attempt'
              ELSE o.history -> -1 ->> 'note' END,
         nullif(CASE WHEN o.due_at <= core.clock() AND o.state NOT IN ('pushed', 'claimed', 'halted') THEN coalesce(b.until, o.due_at)
                     ELSE o.due_at END, 'infinity'), o.attempts::integer, o.history, o.correlation_id
  FROM core.outbox o LEFT JOIN LATERAL core.blocked(p_providers ->> o.queue, o.queue, o.sender_domain) b ON true
  WHERE o.job_id = p_job
  UNION ALL
  SELECT l.job_id, l.queue, l.consumer, l.tenant_id, NULL, CASE l.status WHEN 'pending_review' THEN 'dead' ELSE l.status END,
         CASE l.status WHEN 'pending_review' THEN 'a person: dead letter ' || l.id || ', ' || l.cause
         ELSE concat_ws(': ', l.decided_by, l.reason) END, l.decided_at, l.attempts::integer,
         coalesce(l.snapshot -> 'history', '[]'), l.correlation_id
  FROM core.dead_letters l WHERE l.job_id = p_job AND l.status <> 'replayed'
  UNION ALL
  SELECT d.job_id, d.queue, d.consumer, d.tenant_id, d.kind, d.verdict, nullif(d.reason, ''), NULL, d.attempts::integer, d.history,
         d.correlation_id
  FROM core.delivery d WHERE d.job_id = p_job
$$;
