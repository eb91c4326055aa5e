-- Closings and halts. A closing only ever grows; a halt ends by a person.

CREATE FUNCTION core.close_provider(p_provider text, p_domain text, p_state text, p_reason text, p_seconds double precision,
                                    p_transactional_seconds double precision)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  INSERT INTO core.provider_state AS s (provider, domain, state, reason, since, until, transactional_until)
  VALUES (p_provider, p_domain, p_state, p_reason, core.clock(),
          coalesce(core.clock() + make_interval(secs => p_seconds), 'infinity'),
          coalesce(core.clock() + make_interval(secs => p_transactional_seconds), 'infinity'))
  ON CONFLICT (provider, domain) DO UPDATE
  SET since = CASE WHEN s.until > core.clock() AND s.state = excluded.state THEN s.since ELSE excluded.since END,
      reason = CASE WHEN s.state = 'halted' AND excluded.state <> 'halted' AND s.until > core.clock() THEN s.reason ELSE excluded.reason END,
      state = CASE WHEN s.state = 'halted' AND s.until > core.clock() THEN s.state ELSE excluded.state END,
      until = greatest(s.until, excluded.until),
      transactional_until = greatest(s.transactional_until, excluded.transactional_until)
$$;

-- What is closed or halted now; read by every worker and relay at least every 250 ms.
CREATE FUNCTION core.closings() RETURNS TABLE (provider text, domain text, state text, reason text, since timestamptz,
  seconds double precision, transactional_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT s.provider, s.domain, s.state, s.reason, s.since, core.seconds_until(s.until), core.seconds_until(s.transactional_until)
  FROM core.provider_state s WHERE greatest(s.until, s.transactional_until) > core.clock()
$$;

-- A person ends a closing or halt; what waited for it comes due at once. False: nothing was closed.
CREATE FUNCTION core.resume(p_provider text, p_domain text, p_queues text[], p_who text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  DELETE FROM core.provider_state WHERE provider = p_provider AND domain = p_domain AND until > core.clock();
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE core.outbox SET due_at = core.clock(), ready_at = core.clock()
  WHERE queue = ANY (p_queues) AND due_at > core.clock() AND (p_domain = '' OR sender_domain = p_domain)
    AND state IN ('halted', 'ready');  -- ready and not yet due: deferred, until a closing was to end
  INSERT INTO core.audit (at, who, action, target) VALUES (core.clock(), p_who, 'resume', concat_ws('/', p_provider, nullif(p_domain, '')));
  RETURN true;
END $$;

-- Every process says that it is there, each 5 s.
CREATE FUNCTION core.beat(p_host text, p_pid integer, p_role text, p_lane text, p_since timestamptz, p_trouble text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  INSERT INTO core.process (host, pid, role, lane, since, seen_at, trouble)
  VALUES (p_host, p_pid, p_role, p_lane, p_since, core.clock(), p_trouble)
  ON CONFLICT (host, pid, role, lane) DO UPDATE SET since = excluded.since, seen_at = excluded.seen_at, trouble = excluded.trouble
$$;
