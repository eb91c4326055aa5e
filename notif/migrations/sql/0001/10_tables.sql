-- Tables, their indexes and their storage. Every table with a tenant has row-level security, see 90_access.sql.

CREATE FUNCTION core.clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';
COMMENT ON FUNCTION core.clock() IS
  'The one clock of the protocol. The statement''s time, not the transaction''s: a publisher''s transaction may be long.';

-- A million apart: a row's generations go up by one at every move and must never meet those of a later row of the same id.
CREATE SEQUENCE core.generation AS bigint INCREMENT BY 1000000 START WITH 1000000;

CREATE TABLE core.tenant (
  id         uuid         NOT NULL,
  name       varchar(200) NOT NULL,
  timezone   varchar(64)  NOT NULL DEFAULT 'UTC',
  tier       varchar(40)  NOT NULL DEFAULT 'standard',
  cell_id    uuid         NOT NULL,
  active     boolean      NOT NULL DEFAULT true,
  created_at timestamptz  NOT NULL DEFAULT now(),
  CONSTRAINT pk_tenant PRIMARY KEY (id)
);

CREATE TABLE core.outbox (
  job_id         uuid         NOT NULL,
  queue          varchar(80)  NOT NULL,
  consumer       varchar(80)  NOT NULL,
  tenant_id      uuid         NOT NULL,  -- no foreign key: one hot tenant row halved the rate of publishing
  cell_id        uuid         NOT NULL,
  correlation_id varchar(128) NOT NULL,
  kind           varchar(80)  NOT NULL,
  data           jsonb        NOT NULL,
  schema_hash    varchar(16)  NOT NULL,
  content_hash   bytea        NOT NULL,
  sender_domain  varchar(255) NOT NULL,
  max_age        interval,               -- NULL: waits for ever
  expiry         varchar(10)  NOT NULL CHECK (expiry IN ('expired', 'too_late', 'never')),
  fence_ttl      interval     NOT NULL,
  resend_unknown boolean      NOT NULL,
  request        bytea,                  -- frozen once, repeated byte for byte
  key_number     integer      NOT NULL DEFAULT 0,
  key_since      timestamptz,            -- first call under this key whose outcome is not known
  ambiguous      boolean      NOT NULL DEFAULT false,
  state          varchar(10)  NOT NULL
    CHECK (state IN ('scheduled', 'ready', 'parked', 'retrying', 'halted', 'pushed', 'claimed')),
  attempts       smallint     NOT NULL DEFAULT 0,
  generation     bigint       NOT NULL,
  due_at         timestamptz  NOT NULL,
  ready_at       timestamptz  NOT NULL,
  claimed_at     timestamptz,
  unknown_since  timestamptz,            -- first seen by a worker that does not know its kind or model
  expires_at     timestamptz  NOT NULL,
  lot            varchar(64)  NOT NULL DEFAULT '',
  history        jsonb        NOT NULL DEFAULT '[]',
  created_at     timestamptz  NOT NULL DEFAULT now(),
  CONSTRAINT pk_outbox PRIMARY KEY (job_id, queue)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000);
-- Every question about many rows can be answered by one index alone, by its predicate: the planner chooses with the statistics of
-- an empty table, which the outbox is whenever it is analysed, and with those it sees no difference between indexes, and keeps
-- plans that read all that is due, or waits for next week, for every row it picks [250 of 2,000: 180 ms instead of 15].
-- A push or a claim writes to none of those of what waits.
-- What waits, oldest first: an idle poll is one probe, whatever waits for later.
CREATE INDEX idx_outbox_due ON core.outbox (queue, due_at) WHERE state NOT IN ('pushed', 'claimed');
-- The same by tenant, for the turn through a flood: one probe each. Said in other words (state || ''), to be another predicate.
CREATE INDEX idx_outbox_turn ON core.outbox (queue, tenant_id, due_at) WHERE state || '' NOT IN ('pushed', 'claimed');
-- What is out: counted for the window, looked through for lost workers and pushes. Always small.
CREATE INDEX idx_outbox_out ON core.outbox (queue, state, due_at) WHERE state IN ('pushed', 'claimed');
CREATE INDEX idx_outbox_halted ON core.outbox (queue, sender_domain) WHERE state = 'halted';

CREATE TABLE core.processed_job (
  job_id       uuid        NOT NULL,
  consumer     varchar(80) NOT NULL,
  tenant_id    uuid        NOT NULL CONSTRAINT fk_processed_job_tenant REFERENCES core.tenant (id),
  cell_id      uuid        NOT NULL,
  processed_at timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT pk_processed_job PRIMARY KEY (job_id, consumer)
);
CREATE INDEX idx_processed_job_expires ON core.processed_job (expires_at);

CREATE TABLE core.delivery (
  job_id         uuid         NOT NULL,
  id             bigint       GENERATED ALWAYS AS IDENTITY,  -- a job published again ends again, as Duplicate
  queue          varchar(80)  NOT NULL,
  consumer       varchar(80)  NOT NULL,
  tenant_id      uuid         NOT NULL,
  cell_id        uuid         NOT NULL,
  correlation_id varchar(128) NOT NULL,
  kind           varchar(80)  NOT NULL,
  verdict        varchar(10)  NOT NULL
    CHECK (verdict IN ('delivered', 'duplicate', 'suppressed', 'expired', 'cancelled')),
  reason         text         NOT NULL DEFAULT '',
  provider_id    text         NOT NULL DEFAULT '',
  attempts       smallint     NOT NULL,
  history        jsonb        NOT NULL,
  published_at   timestamptz  NOT NULL,
  ended_at       timestamptz  NOT NULL,
  expires_at     timestamptz  NOT NULL,
  CONSTRAINT pk_delivery PRIMARY KEY (job_id, id)
);
CREATE INDEX idx_delivery_expires ON core.delivery (expires_at);

CREATE TABLE core.dead_letters (
  id             bigint       GENERATED ALWAYS AS IDENTITY,
  job_id         uuid,                   -- NULL for poison that names no job; so are tenant and cell
  queue          varchar(80)  NOT NULL,
  consumer       varchar(80)  NOT NULL,
  tenant_id      uuid,
  cell_id        uuid,
  correlation_id varchar(128),
  payload        jsonb,
  raw            bytea,
  message_id     varchar(200),           -- poison: the id it had on Redis
  attempts       smallint     NOT NULL DEFAULT 0,
  cause          varchar(80)  NOT NULL,
  last_error     text         NOT NULL,
  status         varchar(14)  NOT NULL DEFAULT 'pending_review'
    CHECK (status IN ('pending_review', 'replayed', 'discarded')),
  outcome        varchar(7)   NOT NULL CHECK (outcome IN ('failed', 'unknown')),
  snapshot       jsonb,                  -- the row as it was, with request, key and ambiguity; dropped when decided.
                                         -- jsonb, not the row type: that would forbid adding columns to the outbox
  created_at     timestamptz  NOT NULL,
  decided_at     timestamptz,
  decided_by     text,
  reason         text,
  CONSTRAINT pk_dead_letters PRIMARY KEY (id)
);
-- A pending dead letter is a fence too. With the tenant: an id that is known under another one is a letter of its own.
CREATE UNIQUE INDEX uq_dead_letters_pending ON core.dead_letters (job_id, consumer, tenant_id) WHERE status = 'pending_review';
-- The same poison, delivered again before it was taken off Redis, is one letter; other content under the same id another one.
CREATE UNIQUE INDEX uq_dead_letters_message ON core.dead_letters (queue, message_id, sha256(raw)) WHERE message_id IS NOT NULL;
CREATE INDEX idx_dead_letters_cause ON core.dead_letters (queue, cause) WHERE status = 'pending_review';
CREATE INDEX idx_dead_letters_job ON core.dead_letters (job_id);
CREATE INDEX idx_dead_letters_decided ON core.dead_letters (decided_at) WHERE status <> 'pending_review';

CREATE TABLE core.provider_state (
  provider            varchar(40)  NOT NULL,
  domain              varchar(255) NOT NULL DEFAULT '',  -- a sender domain; empty: the whole provider
  state               varchar(10)  NOT NULL CHECK (state IN ('closed', 'circuit', 'halted')),
  reason              text         NOT NULL,
  since               timestamptz  NOT NULL,
  until               timestamptz  NOT NULL,             -- infinity: until a probe succeeds or a person resumes it
  transactional_until timestamptz  NOT NULL,             -- a 429 holds the transactional lane for less
  probe_at            timestamptz,                       -- circuit or halt: from then on the next claim is its probe
  probe               bigint,                            -- the generation of the claim that is; NULL: none is out
  probe_wait          interval,                          -- circuit: what the last probe waited for, doubled when it fails
  CONSTRAINT pk_provider_state PRIMARY KEY (provider, domain)
);

CREATE TABLE core.incident (
  key         text        NOT NULL,
  title       text        NOT NULL,
  detail      text        NOT NULL,
  provider_id text,                       -- the alert service's id; NULL: not told yet
  tries       integer     NOT NULL DEFAULT 0,
  next_try_at timestamptz NOT NULL,
  opened_at   timestamptz NOT NULL,
  gone_at     timestamptz,                -- the cause is gone, the service is still to be told
  CONSTRAINT pk_incident PRIMARY KEY (key)
);

CREATE TABLE core.audit (
  id     bigint      GENERATED ALWAYS AS IDENTITY,
  at     timestamptz NOT NULL,
  who    text        NOT NULL,
  action text        NOT NULL,
  target text        NOT NULL,
  detail text        NOT NULL DEFAULT '',
  CONSTRAINT pk_audit PRIMARY KEY (id)
);

-- Which installation this is. Redis has the same id under notif:installation; processes refuse to start on two that differ.
CREATE TABLE core.installation (
  one boolean NOT NULL DEFAULT true CHECK (one),  -- a table of one row
  id  uuid    NOT NULL DEFAULT gen_random_uuid(),
  CONSTRAINT pk_installation PRIMARY KEY (one)
);
INSERT INTO core.installation DEFAULT VALUES;

CREATE TABLE core.process (
  host    varchar(255) NOT NULL,
  pid     integer      NOT NULL,
  role    varchar(40)  NOT NULL,
  lane    varchar(400) NOT NULL,
  since   timestamptz  NOT NULL,
  seen_at timestamptz  NOT NULL,
  trouble text         NOT NULL DEFAULT '',  -- what goes wrong there again and again; told as an alert
  CONSTRAINT pk_process PRIMARY KEY (host, pid, role, lane)
);
