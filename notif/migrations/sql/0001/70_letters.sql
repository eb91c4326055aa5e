-- What a person does with a dead letter. Run by the maintenance role; compare-and-set on the letter's status.

-- Put it back: letter and row in one transaction, attempts 0, the same request and, if a call was ambiguous, the same key.
-- Raises NT404 (no such letter), NT409 (the state of things forbids it; the message says why).
CREATE FUNCTION core.replay(p_id bigint, p_key_lifetime interval, p_accept boolean, p_who text) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  l core.dead_letters;
  o core.outbox;
  v_safe boolean;
BEGIN
  l := core.pending_letter(p_id);
  IF l.snapshot IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'NT409', MESSAGE = 'it is poison that names no job: nothing to put back; publish the job again';
  END IF;
  o := jsonb_populate_record(NULL::core.outbox, l.snapshot);
  PERFORM 1 FROM core.outbox x WHERE x.job_id = o.job_id AND x.queue = o.queue;
  IF FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'NT409', MESSAGE = 'its job is in the outbox again; wait until that row has ended';
  END IF;
  v_safe := core.repeatable(o, p_key_lifetime);
  IF NOT v_safe AND NOT p_accept THEN
    RAISE EXCEPTION USING ERRCODE = 'NT409',
      MESSAGE = 'a call''s outcome is unknown and no living key protects a repeat; look at the provider, then discard, or replay with --accept-possible-duplicate';
  END IF;
  IF NOT o.ambiguous OR NOT v_safe THEN
    o.key_number := o.key_number + 1;
    o.key_since := NULL;
  END IF;
  o.attempts := 0;
  o.generation := o.generation + 1;
  o.state := 'ready';
  o.due_at := core.clock();
  o.ready_at := core.clock();
  o.claimed_at := NULL;
  o.unknown_since := NULL;
  o.expires_at := coalesce(core.clock() + o.max_age, 'infinity');
  o.history := core.remember(o.history, 'ready', 'replayed by ' || p_who, core.clock());
  INSERT INTO core.outbox SELECT o.* ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'NT409', MESSAGE = 'its job is published again this very moment; wait until that row has ended';
  END IF;
  UPDATE core.dead_letters SET status = 'replayed', decided_at = core.clock(), decided_by = p_who, snapshot = NULL,
         reason = CASE WHEN v_safe THEN 'same request' ELSE 'possible duplicate accepted' END
  WHERE id = p_id;
  INSERT INTO core.audit (at, who, action, target, detail)
  VALUES (core.clock(), p_who, 'replay', 'dead letter ' || p_id, CASE WHEN v_safe THEN '' ELSE 'possible duplicate accepted' END);
  RETURN o.job_id;
END $$;

-- Close it for good: letter and fence in one transaction.
CREATE FUNCTION core.discard(p_id bigint, p_reason text, p_who text) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  l core.dead_letters;
BEGIN
  l := core.pending_letter(p_id);
  UPDATE core.dead_letters SET status = 'discarded', decided_at = core.clock(), decided_by = p_who, reason = p_reason, snapshot = NULL
  WHERE id = p_id;
  IF l.job_id IS NOT NULL AND l.cause <> 'foreign' THEN  -- the id is another tenant's: its fence is not ours to write
    PERFORM core.fence(l.job_id, l.consumer, l.tenant_id, l.cell_id,
                       coalesce((l.snapshot ->> 'fence_ttl')::interval, interval '7 days'));
  END IF;
  INSERT INTO core.audit (at, who, action, target, detail) VALUES (core.clock(), p_who, 'discard', 'dead letter ' || p_id, p_reason);
  RETURN l.job_id;
END $$;

CREATE FUNCTION core.pending_letter(p_id bigint) RETURNS core.dead_letters
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  l core.dead_letters;
BEGIN
  SELECT * INTO l FROM core.dead_letters x WHERE x.id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'NT404', MESSAGE = 'no dead letter ' || p_id;
  ELSIF l.status <> 'pending_review' THEN
    RAISE EXCEPTION USING ERRCODE = 'NT409',
      MESSAGE = format('it was %s by %s at %s', l.status, l.decided_by, date_trunc('second', l.decided_at));
  END IF;
  RETURN l;
END $$;
