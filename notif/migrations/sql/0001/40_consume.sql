-- The door for the worker. Gate is one read; claim, freeze and settle are one commit each. Everything after the gate is
-- compare-and-set on the generation: whoever lost its row changes nothing. A row is found by its primary key: state || '' keeps
-- the planner from looking for it among all that is out.

-- One read of the row, no commit. No row: gone, or an old generation. verdict NULL: it may go on.
CREATE FUNCTION core.gate(p_job uuid, p_queue text, p_generation bigint, p_provider text, p_key_lifetime interval)
RETURNS TABLE (verdict text, seconds double precision, reason text, job_id uuid, tenant_id uuid, correlation_id text, kind text, data jsonb,
  schema_hash text, sender_domain text, request bytea, attempts integer, unknown_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT b.verdict, core.seconds_until(b.until), b.reason, o.job_id, o.tenant_id, o.correlation_id, o.kind, o.data, o.schema_hash, o.sender_domain, o.request,
         o.attempts::integer, extract(epoch FROM core.clock() - o.unknown_since)::double precision
  FROM core.outbox o
  LEFT JOIN LATERAL core.obstacle(o, p_provider, p_key_lifetime) b ON true
  WHERE o.job_id = p_job AND o.queue = p_queue AND o.generation = p_generation
$$;

-- One commit: asks again all that the gate asked, counts the attempt, freezes a request that needed no rendering.
-- No row: gone. verdict not NULL: it may not go on, nothing was changed. probe: its call is the one that a circuit or halt allows.
CREATE FUNCTION core.claim(p_job uuid, p_queue text, p_generation bigint, p_provider text, p_key_lifetime interval,
                           p_lease interval, p_request bytea)
RETURNS TABLE (verdict text, seconds double precision, reason text, generation bigint, attempts integer, request bytea, key_number integer,
  probe boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  o core.outbox;
  v_due boolean;
BEGIN
  SELECT * INTO o FROM core.outbox x
  WHERE x.job_id = p_job AND x.queue = p_queue AND x.generation = p_generation FOR UPDATE;
  IF NOT FOUND OR o.state <> 'pushed' THEN  -- said here: in the query it would be an invitation to read all that is out
    RETURN;
  END IF;
  -- Before the obstacles: a probe that another claim takes between the two looks stands against this one.
  v_due := EXISTS (SELECT FROM core.provider_state s WHERE s.provider = p_provider AND s.domain IN ('', o.sender_domain)
                   AND s.until > core.clock() AND s.probe_at <= core.clock());
  SELECT b.verdict, core.seconds_until(b.until), b.reason INTO verdict, seconds, reason FROM core.obstacle(o, p_provider, p_key_lifetime) b;
  IF verdict IS NULL AND v_due THEN
    UPDATE core.provider_state s
    SET probe = o.generation + 1, probe_at = core.clock() + greatest(p_lease, CASE s.state WHEN 'halted' THEN interval '1 minute' END)
    WHERE s.provider = p_provider AND s.domain IN ('', o.sender_domain) AND s.until > core.clock() AND s.probe_at <= core.clock();
    probe := FOUND;
    IF NOT probe THEN  -- another claim was first
      SELECT b.verdict, core.seconds_until(b.until), b.reason INTO verdict, seconds, reason
      FROM core.blocked(p_provider, p_queue, o.sender_domain) b;
    END IF;
  END IF;
  IF verdict IS NULL THEN
    UPDATE core.outbox x
    SET state = 'claimed', generation = o.generation + 1, attempts = o.attempts + 1, claimed_at = core.clock(),
        due_at = core.clock() + p_lease, request = coalesce(o.request, p_request), unknown_since = NULL,
        history = core.remember(o.history, 'claimed', 'attempt ' || o.attempts + 1, core.clock())
    WHERE x.job_id = p_job AND x.queue = p_queue
    RETURNING x.generation, x.attempts, x.request, x.key_number INTO generation, attempts, request, key_number;
  END IF;
  RETURN NEXT;
END $$;

-- A rendered request, frozen under the claim; keeps the generation. False: the claim is gone.
CREATE FUNCTION core.freeze(p_job uuid, p_queue text, p_generation bigint, p_request bytea) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH done AS (
    UPDATE core.outbox SET request = p_request
    WHERE job_id = p_job AND queue = p_queue AND generation = p_generation AND state || '' = 'claimed' AND request IS NULL
    RETURNING true)
  SELECT EXISTS (SELECT FROM done)
$$;

-- One commit: where the row goes. Answers the state it came to: 'gone' if the generation has moved on and nothing was written.
-- p_verdict: delivered | suppressed (end) · gate (whatever the gate saw, asked again) · dead (p_cause) · retry (counted, after p_wait)
--            · deferred (not counted, after p_wait seconds, NULL for ever, in p_state) · unknown_kind (deferred, and since when is kept)
-- p_refund: the attempt is given back. p_ambiguous_since: seconds since the call started whose outcome is not known; NULL: none.
CREATE FUNCTION core.settle(p_job uuid, p_queue text, p_generation bigint, p_key_lifetime interval,
  p_max_attempts integer, p_verdict text, p_wait double precision, p_state text, p_cause text, p_error text, p_provider_id text,
  p_refund boolean, p_ambiguous_since double precision)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  o core.outbox;
  v_gate record;
BEGIN
  SELECT * INTO o FROM core.outbox x WHERE x.job_id = p_job AND x.queue = p_queue AND x.generation = p_generation FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'gone';
  END IF;
  IF p_refund AND o.state = 'claimed' THEN
    o.attempts := o.attempts - 1;
  END IF;
  IF p_ambiguous_since IS NOT NULL THEN
    o.ambiguous := true;
    -- never later than the claim: a settle may be repeated for as long as Postgres is away, and the key ages meanwhile
    o.key_since := coalesce(o.key_since, least(o.claimed_at, core.clock() - make_interval(secs => p_ambiguous_since)));
  END IF;
  CASE p_verdict
    WHEN 'delivered' THEN
      PERFORM core.finish(o, 'delivered', '', p_provider_id);
      RETURN 'delivered';
    WHEN 'suppressed' THEN
      RETURN core.finish_unsent(o, 'suppressed', p_error);
    WHEN 'gate' THEN
      SELECT * INTO v_gate FROM core.obstacle(o, NULL, p_key_lifetime);
      RETURN core.settle_gate(o, v_gate.verdict, v_gate.reason);
    WHEN 'dead' THEN
      PERFORM core.bury(o, p_cause, p_error);
      RETURN 'dead';
    WHEN 'retry' THEN
      IF NOT core.repeatable(o, p_key_lifetime) THEN
        PERFORM core.bury(o, 'unrepeatable', p_error);
        RETURN 'dead';
      ELSIF o.attempts >= p_max_attempts THEN
        PERFORM core.bury(o, 'attempts_spent', p_error);
        RETURN 'dead';
      END IF;
      PERFORM core.move(o, 'retrying', core.clock() + make_interval(secs => p_wait), p_error);
      RETURN 'retrying';
    WHEN 'deferred', 'unknown_kind' THEN
      IF p_verdict = 'unknown_kind' THEN
        o.unknown_since := coalesce(o.unknown_since, core.clock());
      END IF;
      IF p_ambiguous_since IS NOT NULL AND NOT core.repeatable(o, p_key_lifetime) THEN
        PERFORM core.bury(o, 'unrepeatable', p_error);
        RETURN 'dead';
      END IF;
      -- A halted row waits for a person, yet not beyond its age: then it comes due once more, and the gate ends it.
      PERFORM core.move(o, p_state, coalesce(core.clock() + make_interval(secs => p_wait), o.expires_at), p_error);
      RETURN p_state;
    ELSE
      RAISE EXCEPTION 'core.settle knows no verdict %', p_verdict;
  END CASE;
END $$;

-- End a row for what stands against it.
CREATE FUNCTION core.settle_gate(o core.outbox, p_verdict text, p_reason text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  CASE
    WHEN p_verdict = 'duplicate' THEN
      PERFORM core.finish(o, 'duplicate', p_reason, '');
    WHEN p_verdict = 'expired' THEN
      RETURN core.finish_unsent(o, 'expired', p_reason);
    WHEN p_verdict IN ('too_late', 'unrepeatable', 'foreign') THEN
      PERFORM core.bury(o, p_verdict, p_reason);
      RETURN 'dead';
    ELSE
      RETURN 'unchanged';  -- what stood against it has gone; its timer brings it back
  END CASE;
  RETURN p_verdict;
END $$;

-- The failures that opened a circuit were the provider's, not the jobs': attempts are given back, nothing waits for a backoff.
CREATE FUNCTION core.give_back(p_jobs uuid[], p_queues text[], p_generations bigint[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  UPDATE core.outbox o
  SET state = 'ready', attempts = o.attempts - 1, generation = o.generation + 1, due_at = core.clock(), ready_at = core.clock(),
      history = core.remember(o.history, 'ready', 'its provider fails, not the job: the attempt is given back', core.clock())
  FROM unnest(p_jobs, p_queues, p_generations) AS f(job_id, queue, generation)
  WHERE o.job_id = f.job_id AND o.queue = f.queue AND o.generation = f.generation AND o.state || '' = 'retrying'
$$;

-- Extend the leases that are still held: moves the timer, not the generation. A row somebody has locked is passed over: it is
-- about to move, or a handler's transaction holds it, and nobody can take it from there.
CREATE FUNCTION core.renew(p_jobs uuid[], p_queues text[], p_generations bigint[], p_max_runtimes interval[], p_lease interval)
RETURNS TABLE (job_id uuid, queue text, generation bigint) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  UPDATE core.outbox o SET due_at = core.clock() + p_lease
  FROM (SELECT x.job_id, x.queue
        FROM unnest(p_jobs, p_queues, p_generations, p_max_runtimes) AS c(job_id, queue, generation, max_runtime)
        JOIN core.outbox x ON x.job_id = c.job_id AND x.queue = c.queue AND x.generation = c.generation
        WHERE x.state || '' = 'claimed' AND core.clock() - x.claimed_at < c.max_runtime
        FOR UPDATE OF x SKIP LOCKED) held
  WHERE o.job_id = held.job_id AND o.queue = held.queue
  RETURNING o.job_id, o.queue::text, o.generation
$$;

-- A database-only consumer's second transaction opens with this: the row is locked, the tenant is set for what the handler touches.
CREATE FUNCTION core.begin_work(p_job uuid, p_queue text, p_generation bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  v_tenant uuid;
BEGIN
  SELECT o.tenant_id INTO v_tenant FROM core.outbox o
  WHERE o.job_id = p_job AND o.queue = p_queue AND o.generation = p_generation AND o.state || '' = 'claimed' FOR UPDATE;
  PERFORM set_config('app.tenant_id', coalesce(v_tenant::text, ''), true);
  RETURN v_tenant IS NOT NULL;
END $$;

-- Poison: bytes that are no reference, or a row whose envelope fails its schema. With a row, letter and row move together, else it
-- would be pushed again: a letter a cycle. True: a new letter.
CREATE FUNCTION core.bury_poison(p_queue text, p_consumer text, p_message_id text, p_job uuid, p_generation bigint, p_raw bytea,
                                 p_error text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  o core.outbox;
BEGIN
  SELECT * INTO o FROM core.outbox x
  WHERE x.job_id = p_job AND x.queue = p_queue AND x.generation = p_generation FOR UPDATE;
  IF FOUND AND EXISTS (SELECT FROM core.dead_letters l WHERE l.job_id = o.job_id AND l.consumer = o.consumer
                       AND l.tenant_id = o.tenant_id AND l.status = 'pending_review') THEN
    PERFORM core.finish(o, 'duplicate', 'a dead letter is pending', '');
    RETURN false;
  ELSIF o.job_id IS NOT NULL THEN
    PERFORM core.bury(o, 'poison', p_error, p_raw);
    RETURN true;
  END IF;
  INSERT INTO core.dead_letters (queue, consumer, raw, message_id, cause, last_error, outcome, created_at)
  VALUES (p_queue, p_consumer, p_raw, p_message_id, 'poison', p_error, 'failed', core.clock()) ON CONFLICT DO NOTHING;
  RETURN FOUND;
END $$;
