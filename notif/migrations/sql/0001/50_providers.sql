-- Closings, circuits and halts. A closing only ever grows; a circuit ends by a probe; a halt by a person, or a probe each minute.

CREATE FUNCTION core.close_provider(p_provider text, p_domain text, p_state text, p_reason text, p_seconds double precision,
                                    p_transactional_seconds double precision)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  INSERT INTO core.provider_state AS s (provider, domain, state, reason, since, until, transactional_until, probe_at)
  VALUES (p_provider, p_domain, p_state, p_reason, core.clock(),
          coalesce(core.clock() + make_interval(secs => p_seconds), 'infinity'),
          coalesce(core.clock() + make_interval(secs => p_transactional_seconds), 'infinity'),
          CASE p_state WHEN 'halted' THEN core.clock() + interval '1 minute' END)
  ON CONFLICT (provider, domain) DO UPDATE
  SET since = CASE WHEN s.until > core.clock() AND s.state = excluded.state THEN s.since ELSE excluded.since END,
      reason = excluded.reason, state = excluded.state, probe_at = excluded.probe_at, probe = NULL, probe_wait = NULL,
      until = greatest(s.until, excluded.until),
      transactional_until = greatest(s.transactional_until, excluded.transactional_until)
  WHERE s.until <= core.clock() OR s.state = 'closed' OR excluded.state = 'halted'  -- a 429 ends neither circuit nor halt
$$;

-- Five failures in a row. True: it is open now, and was not before; a halt, or a closing of all lanes, holds the provider already.
CREATE FUNCTION core.open_circuit(p_provider text, p_reason text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH opened AS (
    INSERT INTO core.provider_state AS s (provider, state, reason, since, until, transactional_until, probe_at, probe_wait)
    VALUES (p_provider, 'circuit', p_reason, core.clock(), 'infinity', 'infinity', core.clock() + interval '2 seconds', interval '2 seconds')
    ON CONFLICT (provider, domain) DO UPDATE
    SET state = excluded.state, reason = excluded.reason, since = excluded.since, until = excluded.until, probe = NULL,
        transactional_until = excluded.transactional_until, probe_at = excluded.probe_at, probe_wait = excluded.probe_wait
    WHERE s.transactional_until <= core.clock()
    RETURNING true)
  SELECT EXISTS (SELECT FROM opened)
$$;

-- What became of a probe, by the generation of its claim; nothing, once another one has been taken. accepted: circuit and halts end
-- · answered: the circuit ends · failed: the circuit waits twice as long, at most 20 s · none: no call was made, the next is the
-- probe. True: something ended. What is halted waits for core.wake_halted.
CREATE FUNCTION core.probed(p_provider text, p_generation bigint, p_outcome text, p_reason text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH ended AS (
    DELETE FROM core.provider_state s
    WHERE s.provider = p_provider AND s.probe = p_generation
      AND (p_outcome = 'accepted' OR (p_outcome = 'answered' AND s.state = 'circuit'))
    RETURNING true
  ), goes_on AS (
    UPDATE core.provider_state s
    SET probe = NULL,
        probe_wait = CASE p_outcome WHEN 'failed' THEN least(2 * s.probe_wait, interval '20 seconds') ELSE s.probe_wait END,
        probe_at = CASE WHEN p_outcome = 'none' THEN core.clock()
                        WHEN s.state = 'circuit' THEN core.clock() + least(2 * s.probe_wait, interval '20 seconds')
                        ELSE s.probe_at END,
        reason = CASE WHEN p_outcome = 'failed' AND s.state = 'circuit' THEN p_reason ELSE s.reason END
    WHERE s.provider = p_provider AND s.probe = p_generation AND p_outcome IN ('failed', 'none'))
  SELECT EXISTS (SELECT FROM ended)
$$;

-- What is closed, open or halted now; read by every worker and relay at least every 250 ms.
CREATE FUNCTION core.closings() RETURNS TABLE (provider text, domain text, state text, reason text, since timestamptz,
  seconds double precision, transactional_seconds double precision, probe_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT s.provider, s.domain, s.state, s.reason, s.since, core.seconds_until(s.until), core.seconds_until(s.transactional_until),
         core.seconds_until(s.probe_at)
  FROM core.provider_state s WHERE greatest(s.until, s.transactional_until) > core.clock()
$$;

-- A person ends a closing, circuit or halt; what waited for it comes due at once. False: nothing was closed.
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
