-- Who may do what. Four roles, none of them BYPASSRLS. FORCE binds the owner too, so it has a policy of its own.

CREATE FUNCTION core.fence(p_job uuid, p_consumer text, p_tenant uuid, p_cell uuid, p_ttl interval) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  INSERT INTO core.processed_job (job_id, consumer, tenant_id, cell_id, processed_at, expires_at)
  VALUES (p_job, p_consumer, p_tenant, p_cell, core.clock(), core.clock() + greatest(p_ttl, interval '7 days'))
  ON CONFLICT DO NOTHING
$$;
COMMENT ON FUNCTION core.fence(uuid, text, uuid, uuid, interval) IS
  'For core.discard: the maintenance role itself cannot write fences.';

DO $$
DECLARE
  t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['tenant', 'outbox', 'processed_job', 'delivery', 'dead_letters'] LOOP
    EXECUTE format('ALTER TABLE core.%I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE core.%I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY owner ON core.%I TO notif_owner USING (true) WITH CHECK (true)', t);
    EXECUTE format('CREATE POLICY maintenance ON core.%I TO notif_maintenance USING (true) WITH CHECK (true)', t);
    EXECUTE format('CREATE POLICY tenant ON core.%I TO notif_worker USING (%2$I = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
                    WITH CHECK (%2$I = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)',
                   t, CASE t WHEN 'tenant' THEN 'id' ELSE 'tenant_id' END);
  END LOOP;
END $$;

-- By name, here and below: in schema core there may be tables and functions that are not ours to touch.
DO $$
DECLARE
  f regprocedure;
BEGIN
  FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'core'::regnamespace AND p.proowner = 'notif_owner'::regrole LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
  END LOOP;
END $$;

GRANT USAGE ON SCHEMA core TO notif_publisher, notif_worker, notif_maintenance;

GRANT EXECUTE ON FUNCTION core.publish(jsonb), core.cancel(uuid), core.status(uuid, jsonb)
  TO notif_publisher, notif_worker, notif_maintenance;

GRANT EXECUTE ON FUNCTION
  core.gate(uuid, text, bigint, text, interval),
  core.claim(uuid, text, bigint, text, interval, interval, bytea),
  core.freeze(uuid, text, bigint, bytea),
  core.settle(uuid, text, bigint, interval, integer, text, double precision, text, text, text, text, boolean, double precision),
  core.renew(uuid[], text[], bigint[], interval[], interval),
  core.begin_work(uuid, text, bigint),
  core.bury_poison(text, text, text, uuid, bigint, bytea, text),
  core.close_provider(text, text, text, text, double precision, double precision),
  core.closings(), core.open_circuit(text, text), core.probed(text, bigint, text, text), core.give_back(uuid[], text[], bigint[]),
  core.beat(text, integer, text, text, timestamptz, text),
  core.clock()
  TO notif_worker;
GRANT SELECT ON core.tenant, core.processed_job, core.delivery, core.installation, core.process TO notif_worker;

GRANT EXECUTE ON FUNCTION
  core.clock(), core.remember(jsonb, text, text, timestamptz), core.blocked(text, text, text),
  core.repeatable(core.outbox, interval), core.bury(core.outbox, text, text, bytea),
  core.end_lost(text, boolean, integer), core.hold_halted(text, text, timestamptz), core.turn(text, uuid, timestamptz, integer),
  core.tenants_due(text, uuid, timestamptz, uuid[], integer), core.expired(text, timestamptz),
  core.pick(text, text, boolean, integer, integer, uuid, timestamptz), core.requeue(text[]), core.watermark(text), core.seconds_until(timestamptz),
  core.close_provider(text, text, text, text, double precision, double precision), core.closings(),
  core.resume(text, text, text[], text), core.wake_halted(text, text[]),
  core.replay(bigint, interval, boolean, text), core.discard(bigint, text, text), core.pending_letter(bigint),
  core.fence(uuid, text, uuid, uuid, interval), core.clean_fences(integer), core.clean_deliveries(integer),
  core.clean_letters(interval, integer), core.clean_processes(), core.beat(text, integer, text, text, timestamptz, text)
  TO notif_maintenance;
GRANT SELECT ON core.audit, core.dead_letters, core.delivery, core.incident, core.installation, core.notif_version, core.outbox, core.process,
  core.processed_job, core.provider_state, core.tenant TO notif_maintenance;
GRANT INSERT, UPDATE, DELETE ON core.outbox, core.dead_letters, core.incident, core.process, core.provider_state TO notif_maintenance;
GRANT INSERT, UPDATE ON core.tenant TO notif_maintenance;
GRANT DELETE ON core.delivery TO notif_maintenance;
GRANT INSERT ON core.audit TO notif_maintenance;
