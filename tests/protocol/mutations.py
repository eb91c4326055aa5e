"""Rules broken on purpose, in the SQL functions themselves: each must be caught on the real tables.

Names as in `model.py`; `--drop` ones are the amendments taken back. What can't be broken here is listed with its reason.
"""

from typing import NamedTuple

Edit = tuple[str, str, str]
"""Function of schema core, a text in it, what stands there instead."""


class Mutation(NamedTuple):
    """`edits` in the functions; without any, the driver itself breaks the rule (in the carrier, the lease or the last look)."""

    edits: tuple[Edit, ...] = ()
    keyed: int = 0
    keyless: int = 0
    """A seed that catches it, with provider keys or without; 0: none is recorded."""
    weights: tuple[tuple[str, float], ...] = ()
    """Events that this rule is about, made frequent: its seeds come sooner."""


_UNREPEATABLE = "coalesce(core.clock() - o.key_since < p_key_lifetime - interval '1 hour', false)"
_LOST = "(x.request IS NOT NULL AND NOT p_keyed AND NOT x.resend_unknown)"
_OBSTACLES = "FROM core.obstacle(o, p_provider, p_key_lifetime) b;"

SQL_MUTATIONS: dict[str, Mutation] = {
    "claim_without_generation": Mutation(
        (("claim", "AND x.generation = p_generation FOR UPDATE", "FOR UPDATE"),), keyed=2
    ),
    "settle_without_generation": Mutation(
        (("settle", "AND x.generation = p_generation FOR UPDATE", "FOR UPDATE"),), keyed=2
    ),
    "push_keeps_generation": Mutation(
        (("pick", "SET generation = o.generation + 1,", "SET generation = o.generation,"),), keyed=1
    ),
    "push_to_paused": Mutation(
        (
            (
                "pick",
                "IF EXISTS (SELECT FROM core.blocked(p_provider, p_queue, '')) THEN",
                "IF false THEN",
            ),
        ),
        keyed=1,
    ),
    "attempts_before_permit": Mutation(
        (
            ("gate", "LANGUAGE sql STABLE", "LANGUAGE sql VOLATILE"),
            (
                "gate",
                "AS $$\n  SELECT",
                "AS $$\n  UPDATE core.outbox SET attempts = attempts + 1 "
                "WHERE job_id = p_job AND queue = p_queue AND generation = p_generation;\n  SELECT",
            ),
            ("claim", "attempts = o.attempts + 1", "attempts = o.attempts"),
        ),
        keyed=1,
    ),
    "deferred_counts": Mutation((("settle", "o.attempts := o.attempts - 1;", "NULL;"),), keyed=1),
    "cancel_claimed": Mutation(
        (("cancel", "o.state <> 'claimed' AND NOT o.ambiguous", "NOT o.ambiguous"),), weights=(("cancel", 14),), keyed=7
    ),
    "cancel_without_fence": Mutation(
        (("finish", "WHERE p_verdict <> 'duplicate'", "WHERE p_verdict NOT IN ('duplicate', 'cancelled')"),),
        keyed=1,
    ),
    "letter_is_no_fence": Mutation((("obstacle", "l.status = 'pending_review'", "false"),), keyed=6),
    "duplicate_only_acks": Mutation(
        (("settle_gate", "PERFORM core.finish(o, 'duplicate', p_reason, '');", "RETURN 'unchanged';"),), keyed=1
    ),
    "duplicate_writes_fence": Mutation((("finish", "WHERE p_verdict <> 'duplicate'", "WHERE true"),), keyed=6),
    "discard_without_fence": Mutation(
        (("discard", "IF l.job_id IS NOT NULL AND l.cause <> 'foreign' THEN", "IF false THEN"),),
        weights=(("discard", 15),),
        keyed=2,
    ),
    "replay_beside_row": Mutation(
        (
            (
                "replay",
                "PERFORM 1 FROM core.outbox x WHERE x.job_id = o.job_id AND x.queue = o.queue;",
                "PERFORM 1 FROM core.outbox x WHERE x.job_id = o.job_id AND x.queue = o.queue; IF FOUND THEN "
                "UPDATE core.dead_letters SET status = 'replayed', snapshot = NULL WHERE id = p_id; RETURN o.job_id; END IF;",
            ),
        ),
        weights=(("replay", 10), ("publish", 30)),
        keyed=4,
    ),
    "key_per_attempt": Mutation(
        (("claim", "x.request, x.key_number INTO", "x.request, x.key_number * 10 + x.attempts INTO"),), keyed=4
    ),
    "key_age_ignored": Mutation((("repeatable", _UNREPEATABLE, "p_key_lifetime IS NOT NULL"),), keyed=5),
    "lost_worker_is_certain": Mutation(
        (
            (
                "pick",
                "ambiguous = o.ambiguous OR (o.state = 'claimed' AND o.request IS NOT NULL)",
                "ambiguous = o.ambiguous",
            ),
            (
                "pick",
                "THEN coalesce(o.key_since, o.claimed_at) ELSE o.key_since END",
                "THEN o.key_since ELSE o.key_since END",
            ),
            ("end_lost", "IF o.request IS NOT NULL THEN", "IF false THEN"),
        ),
        keyed=6,
    ),
    "lost_worker_always_repeats": Mutation(
        (("end_lost", _LOST, "false"), ("repeatable", _UNREPEATABLE, "true")), keyed=5
    ),
    "work_without_generation": Mutation(
        (("begin_work", "RETURN v_tenant IS NOT NULL;", "RETURN true;"),), weights=(("freeze", 9),), keyed=17
    ),
    "settle_takes_all_queues": Mutation(
        (("finish", "WHERE job_id = o.job_id AND queue = o.queue", "WHERE job_id = o.job_id"),), keyed=2
    ),
    # ---- amendments taken back
    "generation_never_restarts": Mutation(
        (
            ("publish", "nextval('core.generation')", "0"),
            ("replay", "o.generation := o.generation + 1", "o.generation := 1"),
        ),
        weights=(("publish", 20), ("cancel", 8), ("freeze", 6)),
        keyed=7,
    ),
    "claim_repeats_gate": Mutation(
        (("claim", _OBSTACLES, "FROM core.obstacle(o, NULL, interval '100 years') b;"),),
        weights=(("pause", 10), ("resume", 12)),
        keyed=14,
    ),
    "mark_bars_not_sent": Mutation(
        (("cancel", "AND NOT o.ambiguous", ""), ("finish_unsent", "IF o.ambiguous THEN", "IF false THEN")),
        weights=(("cancel", 12),),
        keyed=3,
    ),
    "cancel_respects_fence": Mutation(
        (
            (
                "cancel",
                "AND NOT EXISTS (SELECT FROM core.processed_job f",
                "AND (true OR NOT EXISTS (SELECT FROM core.processed_job f",
            ),
            ("cancel", "l.status = 'pending_review');", "l.status = 'pending_review'));"),
        ),
        weights=(("cancel", 12), ("publish", 16)),
        keyed=1,
    ),
    "fence_outlives_row": Mutation(
        (
            (
                "clean_fences",
                "AND NOT EXISTS (SELECT FROM core.outbox o WHERE o.job_id = x.job_id AND o.consumer = x.consumer)",
                "",
            ),
        ),
        keyed=8,
    ),
    "accepted_replay_new_key": Mutation(
        (("replay", "IF NOT o.ambiguous OR NOT v_safe THEN", "IF NOT o.ambiguous THEN"),),
        weights=(("replay", 25),),
        keyed=8,
    ),
    # ---- beyond the model
    "freeze_without_generation": Mutation(
        (("freeze", "AND generation = p_generation AND state || '' = 'claimed'", ""),), keyed=2
    ),
    "requeue_takes_claimed": Mutation(
        (("requeue", "AND state = 'pushed'", "AND state IN ('pushed', 'claimed')"),),
        weights=(("relay_crash", 10),),
        keyed=2,
    ),
    "letter_leaves_row": Mutation(
        (("bury", "DELETE FROM core.outbox WHERE job_id = o.job_id AND queue = o.queue;", ""),), keyed=5
    ),
    "retry_ignores_attempts": Mutation(
        (("settle", "ELSIF o.attempts >= p_max_attempts THEN", "ELSIF false THEN"),), keyed=6
    ),
    "lost_worker_ignores_attempts": Mutation(
        (("end_lost", "x.attempts >= p_max_attempts OR", ""), ("pick", "o.attempts >= p_max_attempts OR", "")), keyed=13
    ),
    "halt_outlives_expiry": Mutation(
        (
            ("pick", "WHEN v_domains AND l.expires_at > v_now", "WHEN v_domains"),
            ("hold_halted", " AND o.expires_at > core.clock()", ""),
        ),
        weights=(("pause", 2), ("resume", 1.5)),
        keyed=9,
    ),
    "expiry_ignored": Mutation((("obstacle", "WHERE o.expires_at < core.clock()", "WHERE false"),), keyed=2),
}
DRIVER_MUTATIONS: dict[str, Mutation] = {
    "push_before_commit": Mutation(keyed=1),
    "redis_id_without_generation": Mutation(keyed=2),
    "call_without_lease_check": Mutation(keyed=4),
    "lease_by_wall_clock": Mutation(keyed=1),
    "no_check_after_permit": Mutation(
        (("claim", _OBSTACLES, "FROM core.obstacle(o, NULL, p_key_lifetime) b;"),),
        weights=(("pause", 10), ("resume", 12)),
        keyed=14,
    ),
    "check_before_call": Mutation(weights=(("pause", 12), ("resume", 30), ("publish", 16), ("worker", 30)), keyed=14),
}
MUTATIONS = SQL_MUTATIONS | DRIVER_MUTATIONS
NOT_HERE = {
    "renewal_without_generation": "no seed of 250 catches it without keys any more; test_edges.py tries it by itself",
    "no_memory_check_before_claim": "not caught in the model either: claim and last look cover it",
    "thaw_after_ambiguous": "chunks come with blasts",
    "freeze_checks_suppression": "chunks come with blasts",
    "uncalled_chunk_is_thawed": "chunks come with blasts",
}
