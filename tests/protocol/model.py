"""Executable model of notif's hand-over protocol: seeded random schedules, invariants at every step, named mutations.

    python -m tests.protocol.model --runs 2000                 the protocol with the amendments listed below
    python -m tests.protocol.model --variant design            an earlier wording, without the amendments
    python -m tests.protocol.model --mutate all / --drop all   break one rule / take back one amendment at a time

Everything here is Python; `real.py` plays the same schedules on the real tables. Whoever changes the protocol changes this first.
"""

# One file on purpose: a model that can be read from top to bottom beside the design.
from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

# Figures of design.md, in seconds. VIEW_AGE: how old a worker's memory of pauses may be. PAUSE_WINDOW: how late a request
# may start.
PUSH_TIMER, LEASE, DEADLINE, MAX_RUNTIME, ATTEMPTS = 20, 20, 10, 60, 5
KEY_LIFETIME, KEY_MARGIN, FENCE_LIFE, TOO_LATE = 86_400, 3_600, 7 * 86_400, 3 * 86_400
VIEW_AGE, PAUSE_WINDOW, OUTSTANDING, NEVER = 1, 1, 4, 10**12
MAIL_QUEUES = ("mail.transactional", "mail.marketing")
QUEUES = (*MAIL_QUEUES, "ledger")
NOT_SENT = ("Cancelled", "Expired", "Suppressed")  # verdicts which assert that nothing was sent

AMENDMENTS = {  # what an earlier wording of design.md lacked and it now holds; each can be taken back with --drop
    "generation_never_restarts": "publish draws the first generation from a sequence; replay goes on from the letter's",
    "claim_repeats_gate": "the claim's statement repeats the gate's conditions: pause, suppression, age of the key",
    "check_before_call": "pauses are looked at immediately before the call, in a memory at most a second old",
    "mark_bars_not_sent": "a job with the ambiguity mark is never Cancelled, Expired or Suppressed (cancel: false)",
    "cancel_respects_fence": "cancel answers false for a job that has a fence or a pending letter",
    "fence_outlives_row": "a fence is not cleaned up while a row of its job is in the outbox",
    "accepted_replay_new_key": "a replay with accepted duplicate takes a new key, whose clock has not started",
    "freeze_checks_suppression": "the commit that freezes a chunk checks suppression itself, else it is rendered again",
    "uncalled_chunk_is_thawed": "a chunk whose call was not started, or replayed without ambiguity, is thawed too",
}
MUTATIONS = {  # each breaks one rule; --mutate NAME must be caught
    "push_before_commit": "the relay pushes first, commits afterwards",
    "push_keeps_generation": "a push does not raise the generation",
    "push_to_paused": "the relay pushes to a paused lane",
    "no_check_after_permit": "nothing is asked again after the permit (memory, claim, before the call)",
    "no_memory_check_before_claim": "only the look between permit and claim is left out",
    "claim_without_generation": "the claim takes the row at any generation",
    "settle_without_generation": "the settle takes the row at any generation",
    "renewal_without_generation": "a renewal extends the lease of a claim that is gone",
    "call_without_lease_check": "a call starts whatever is left of the lease",
    "lease_by_wall_clock": "the worker compares Postgres' lease with its own wall clock",
    "attempts_before_permit": "the gate counts the attempt",
    "deferred_counts": "a certain refusal does not give its attempt back",
    "cancel_claimed": "cancel takes a claimed row",
    "cancel_without_fence": "cancel writes no fence",
    "letter_is_no_fence": "a pending dead letter does not answer Duplicate",
    "duplicate_only_acks": "Duplicate leaves the row",
    "duplicate_writes_fence": "Duplicate writes a fence beside a pending letter",
    "discard_without_fence": "discard writes no fence",
    "replay_beside_row": "replay marks the letter although a row of its id is there",
    "thaw_after_ambiguous": "a refused chunk is thawed although a call was ambiguous",
    "key_per_attempt": "the key is derived anew at every attempt",
    "key_age_ignored": "a key is used again however old it is",
    "lost_worker_is_certain": "a lost worker's call is not marked ambiguous",
    "lost_worker_always_repeats": "a lost worker's call is repeated without provider keys",
    "redis_id_without_generation": "the Redis id is the job's; an id that is present is refused",
    "work_without_generation": "database-only work is not tied to its claim",
    "settle_takes_all_queues": "one consumer's settle deletes the rows of the job's other consumers",
}
ORDINARY: dict[str, float] = {
    "worker": 46,
    "relay": 16,
    "renew": 4,
    "publish": 8,
    "cancel": 2,
    "pause": 1.2,
    "resume": 2,
    "suppress": 1.2,
    "replay": 2.5,
    "discard": 0.7,
    "clean_fences": 1,
}
FAULTS: dict[str, float] = {
    "kill": 1.5,
    "freeze": 2.5,
    "wipe": 0.6,
    "backup": 0.6,
    "restore": 0.6,
    "reap": 1.5,
    "relay_crash": 1,
    "redis_stall": 0.8,
    "lost_reply": 0,
    "lost_push": 0,
    "lost_fetch": 0,
    "provider": 0,
}  # weight 0: strikes inside another step
BEYOND: dict[str, float] = {"suspend": 2}  # faults the design assumes away: only with --faults all,suspend
GAPS = {0: 62, 1: 24, 4: 8, 12: 3.5, 30: 2, 1_800: 0.4, 90_000: 0.2, 8 * 86_400: 0.1}


T = TypeVar("T")
Bytes = tuple[Any, ...]  # stands for the frozen bytes of a request


class Violation(BaseException):
    """An invariant does not hold; the first argument names it. Not an Exception: the product must not swallow it."""


class Dice:
    """A small reproducible source of chance: every event carries its own, so that events can be removed one by one."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def number(self) -> float:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) / 2**31

    def chance(self, probability: float) -> bool:
        return self.number() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.number() * len(choices))]


class Event(NamedTuple):
    """One entry of a schedule: who does what, with which dice, how long after the previous one."""

    kind: str
    who: int
    seed: int
    gap: int


@dataclass(frozen=True)
class Settings:
    keyed: bool = True
    amendments: frozenset[str] = frozenset(AMENDMENTS)
    mutation: str = ""
    faults: frozenset[str] = frozenset(FAULTS)
    length: int = 220
    weights: tuple[tuple[str, float], ...] = ()  # of events that are to happen more, or less, often


@dataclass(frozen=True)
class Kind:
    """What a job is. shape: plain (frozen in the claim), template, chunk, database (no provider)."""

    shape: str
    queues: tuple[str, ...]
    max_age: int | None = None
    resend: bool = False  # on_unknown: resend


KINDS = {
    "order": Kind("plain", ("mail.transactional",)),
    "otp": Kind("template", ("mail.transactional",), max_age=300, resend=True),
    "reset": Kind("plain", ("mail.transactional",), max_age=3_600),
    "news": Kind("template", ("mail.marketing",)),
    "chunk": Kind("chunk", ("mail.marketing",)),
    "entry": Kind("database", ("ledger",)),
    "invoice": Kind("template", ("mail.transactional", "ledger")),  # two consumers
}
Address = tuple[str, str]  # (job, queue)


@dataclass
class Row:
    """An outbox row. The last block is for the checker alone: the protocol never reads it."""

    job: str
    queue: str
    kind: Kind
    content: int
    generation: int
    due_at: float
    ready_at: float
    expires_at: float
    state: str = "ready"
    attempts: int = 0
    request: Bytes | None = None  # frozen
    thaws: int = 0
    key_clock: float | None = None  # since when a call under this key has an unknown outcome
    ambiguous: bool = False
    claimed_at: float = 0
    history: list[str] = field(default_factory=list)
    life: int = 0  # number of the insertion
    claim: int = 0  # number of the claim that holds it
    slot: float = 0
    spent: int = 0  # attempts that really were used
    accepted: bool = False  # replayed with --accept-possible-duplicate, not called since

    @property
    def address(self) -> Address:
        return self.job, self.queue

    @property
    def shape(self) -> str:
        return "database" if self.queue == "ledger" else self.kind.shape


@dataclass
class Letter:
    row: Row
    cause: str
    outcome: str
    status: str = "pending_review"


@dataclass(frozen=True)
class Reference:
    job: str
    queue: str
    generation: int
    life: int


NOTHING = Reference("", "", 0, 0)


@dataclass
class Redis:
    bodies: dict[str, Reference] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    acks: dict[int, list[str]] = field(default_factory=dict)
    epoch: bool = True

    def copy(self) -> Redis:
        return Redis(
            dict(self.bodies),
            {q: list(ids) for q, ids in self.lists.items()},
            {w: list(i) for w, i in self.acks.items()},
            self.epoch,
        )

    def reap(self, worker: int) -> None:
        """Give a worker's unacknowledged ids back to their lists."""
        for message in self.acks.pop(worker, []):
            if message in self.bodies:
                self.lists[self.bodies[message].queue].append(message)


@dataclass
class Worker:
    number: int
    clock_offset: int  # its clocks against Postgres'
    phase: str = "idle"
    reference: Reference = NOTHING
    message: str = ""
    generation: int = 0
    claim: int = 0
    claimed_at: float = 0
    lease_end: float = 0  # on its own monotonic clock
    rendered: Bytes = ()
    key: str = ""
    result: str = ""
    started_at: float = 0
    view: frozenset[str] = frozenset()
    view_read_at: float = -NEVER
    frozen_until: float = 0
    suspended: bool = False


@dataclass
class Story:
    """What the checker remembers of an id at one consumer, from the first publish until nobody remembers it."""

    effects: int = 0
    allowed: float = 1
    not_sent: str = ""


class Model:
    def __init__(self, settings: Settings, seed: int, trace: list[str] | None = None) -> None:
        self.settings, self.trace, self.now, self.quiet = settings, trace, 0.0, False
        dice = Dice(seed * 2 + 1)
        self.jobs = {f"job{n}": dice.pick(list(KINDS)) for n in range(1, 5)}
        self.rows: dict[Address, Row] = {}
        self.fences: dict[Address, tuple[float, str]] = {}
        self.letters: list[Letter] = []
        self.pauses: dict[str, float] = {}
        self.suppressed: dict[str, float] = {}
        self.closed_until = 0.0
        self.redis, self.backup, self.redis_down_until = Redis(), Redis(), 0.0
        self.workers = [Worker(n, dice.pick((0, -7_000, 40, 7_000))) for n in range(3)]
        self.relays: list[tuple[Row, Reference, int] | None] = [None, None]  # committed, not pushed
        self.provider_keys: dict[str, tuple[Bytes, float]] = {}  # key -> bytes, first accepted
        self.key_bytes: dict[str, tuple[Bytes, float]] = {}
        self.late: list[tuple[float, Address]] = []  # requests whose effect is still to come
        self.stories: dict[Address, Story] = {}
        self.published = 0
        self.open_lives: set[int] = set()
        self.ends: Counter[str] = Counter()
        self.claims = self.generations = 0
        self.pushes: Counter[tuple[int, int]] = Counter()
        self.outage = "provider" in settings.faults and dice.chance(
            0.15
        )  # the provider stays bad while the rest drains

    # ---- shorthand
    def broken(self, name: str) -> bool:
        return self.settings.mutation == name

    def amended(self, name: str) -> bool:
        return name in self.settings.amendments

    def fault(self, name: str, dice: Dice, probability: float) -> bool:
        return not self.quiet and name in self.settings.faults and dice.chance(probability)

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:>9.0f} s  {text}")

    def redis_answers(self) -> bool:
        return self.now >= self.redis_down_until

    # ---- Postgres: every function below is one atomic transaction
    def mine(self, ref: Reference, generation: int, unchecked: bool = False, claim: int = 0) -> Row | None:
        """`WHERE generation = :mine`. The checker also asks whether it is the same insertion and the same claim."""
        row = self.rows.get((ref.job, ref.queue))
        if row is None or (row.generation != generation and not unchecked):
            return None
        if row.life != ref.life or (claim and row.claim != claim) or row.generation != generation:
            raise Violation(
                "stale generation changed a row", f"{row.job}: held {generation}, row is at {row.generation}"
            )
        return row

    def move(self, row: Row, state: str, due_at: float, note: str) -> None:
        """Move a row: one statement, one generation more."""
        row.generation += 1
        row.state, row.due_at, row.claim = state, due_at, 0
        row.history = [*row.history[-19:], note]
        if state in ("ready", "deferred", "retrying"):
            row.ready_at = row.slot = due_at
        self.say(
            f"{row.job} on {row.queue}: {note} (generation {row.generation}, attempts {row.attempts}, due {due_at:.0f})"
        )

    def end(self, row: Row, verdict: str) -> None:
        """Fence + outcome + row gone, one commit."""
        del self.rows[row.address]
        if self.broken("settle_takes_all_queues"):
            for queue in QUEUES:
                self.rows.pop((row.job, queue), None)
        unfenced = verdict == "Cancelled" and self.broken("cancel_without_fence")
        if (verdict != "Duplicate" or self.broken("duplicate_writes_fence")) and not unfenced:
            self.fences.setdefault(row.address, (self.now, verdict))
        self.say(f"{row.job} on {row.queue}: {verdict}, row gone")
        self.close(row.life, verdict)
        if verdict in NOT_SENT:
            self.claims_not_sent(row.address, verdict)

    def die(self, row: Row, cause: str, ambiguous: bool) -> None:
        """The row becomes a pending dead letter, one commit."""
        del self.rows[row.address]
        if cause in ("attempts spent", "worker_lost") and row.spent != ATTEMPTS:
            raise Violation("dead before five attempts", f"{row.job}: {row.spent} used, {row.attempts} counted")
        if row.accepted and cause == "can't be repeated":
            raise Violation("accepted replay ends without a call", row.job)
        row.ambiguous, row.state, row.claim = ambiguous, "dead", 0
        self.letters.append(Letter(row, cause, "unknown" if ambiguous else "failed"))
        self.say(f"{row.job} on {row.queue}: dead letter, {cause}, outcome {self.letters[-1].outcome}")
        if not ambiguous:
            self.claims_not_sent(row.address, "Dead (failed)")

    def end_not_sent(self, row: Row, verdict: str, cause: str) -> None:
        """Expired or Suppressed; with the ambiguity mark nobody can say so."""
        if row.ambiguous and self.amended("mark_bars_not_sent"):
            self.die(row, cause, True)
        else:
            self.end(row, verdict)

    def pending(self, address: Address) -> Letter | None:
        return next((x for x in self.letters if x.row.address == address and x.status == "pending_review"), None)

    def fenced(self, address: Address) -> bool:
        return address in self.fences or (self.pending(address) is not None and not self.broken("letter_is_no_fence"))

    def repeatable(self, row: Row) -> bool:
        """May the frozen request be sent (again) under its key?"""
        if (
            row.key_clock is None
            or row.kind.resend
            or self.broken("key_age_ignored" if self.settings.keyed else "lost_worker_always_repeats")
        ):
            return True
        return self.settings.keyed and self.now - row.key_clock < KEY_LIFETIME - KEY_MARGIN

    def publish(self, job: str, content: int, run_at: float) -> None:
        kind = KINDS[self.jobs[job]]
        for address in ((job, queue) for queue in kind.queues):
            if address in self.rows:
                same = self.rows[address].content == content
                self.say(f"publish {job} again on {address[1]}: {'same job' if same else 'refused, other content'}")
                continue
            known = address in self.fences or self.pending(address)
            if not known:  # nobody remembers this id: by design a new job
                self.stories[address] = Story(allowed=float("inf") if kind.resend else 1)
            self.generations += 100
            age = kind.max_age or (TOO_LATE if address[1] == "mail.transactional" else NEVER)
            self.published += 1
            first = self.generations if self.amended("generation_never_restarts") else 0
            self.rows[address] = Row(
                job, address[1], kind, content, first, run_at, run_at, run_at + age, life=self.published, slot=run_at
            )
            self.open_lives.add(self.published)
            self.say(
                f"publish {job} ({self.jobs[job]}) on {address[1]}, due {run_at:.0f}{', although known' if known else ''}"
            )

    def cancel(self, address: Address) -> None:
        row = self.rows.get(address)
        refused = row is None or (row.state == "claimed" and not self.broken("cancel_claimed"))
        if (row and row.ambiguous and self.amended("mark_bars_not_sent")) or (
            self.fenced(address) and self.amended("cancel_respects_fence")
        ):
            refused = True
        self.say(f"cancel {address[0]} on {address[1]}: {'false' if refused else 'true'}")
        if row and not refused:
            self.end(row, "Cancelled")

    def replay(self, letter: Letter, accept: bool) -> None:
        """Letter and row move in one transaction, by compare-and-set; the table's primary key refuses a second row of the id."""
        row = letter.row
        if letter.status != "pending_review":
            return
        if row.address in self.rows:
            if self.broken("replay_beside_row"):
                letter.status = "replayed"
                self.close(row.life, "replayed beside a row")
            return
        safe = self.repeatable(row)
        if not safe and not accept:
            return
        letter.status = "replayed"
        story = self.stories[row.address]
        story.not_sent = ""
        if not safe:
            story.allowed += 1
            row.accepted = True
        if not row.ambiguous or (not safe and self.amended("accepted_replay_new_key")):
            row.thaws, row.key_clock = row.thaws + 1, None
        if row.shape == "chunk" and not row.ambiguous and self.amended("uncalled_chunk_is_thawed"):
            row.request = None
        row.attempts = row.spent = 0
        row.generation = row.generation if self.amended("generation_never_restarts") else 0
        row.expires_at = self.now + (row.expires_at - row.slot if row.expires_at < NEVER else NEVER)
        self.rows[row.address] = row
        self.move(row, "ready", self.now, f"replayed{' (possible duplicate accepted)' if not safe else ''}")
        if row.address in self.fences and not self.fences[row.address][1] == "Cancelled":
            raise Violation("replayed behind a fence", f"{row.job}: its replay can only be a Duplicate")

    def discard(self, letter: Letter) -> None:
        if letter.status == "pending_review":
            letter.status = "discarded"
            if not self.broken("discard_without_fence"):
                self.fences.setdefault(letter.row.address, (self.now, "Discarded"))
            self.close(letter.row.life, "dead")
            self.say(f"letter of {letter.row.job} discarded")

    def clean_fences(self) -> None:
        for address, (written, _) in list(self.fences.items()):
            if self.now - written > FENCE_LIFE and not (address in self.rows and self.amended("fence_outlives_row")):
                del self.fences[address]
                self.say(f"fence of {address[0]} on {address[1]} expired and removed")

    # ---- the provider, and what the checker knows of the world
    def effect(self, address: Address) -> None:
        story = self.stories[address]
        story.effects += 1
        self.say(f"    the provider (or the table) has {address[0]} on {address[1]}: number {story.effects}")
        if story.effects > story.allowed:
            raise Violation("sent twice", f"{address[0]}: {story.effects} times")
        if story.not_sent:
            raise Violation("sent after a verdict that denies it", f"{address[0]}: {story.not_sent}")

    def claims_not_sent(self, address: Address, verdict: str) -> None:
        story = self.stories[address]
        story.not_sent = verdict
        if story.effects:
            raise Violation("verdict denies what was sent", f"{address[0]}: {verdict}, but sent")

    def close(self, life: int, verdict: str) -> None:
        if life not in self.open_lives:
            raise Violation("two end states", f"insertion {life} ends again as {verdict}")
        self.open_lives.remove(life)
        self.ends[verdict] += 1

    def provider(self, row: Row, key: str, dice: Dice) -> str:
        """Answer one request. late: no answer, the effect comes within a minute all the same."""
        for memory in (self.provider_keys, self.key_bytes):
            for old in [k for k, (_, since) in memory.items() if self.now - since > KEY_LIFETIME]:
                del memory[old]
        request = row.request or ()
        if self.key_bytes.setdefault(key, (request, self.now))[0] != request:
            raise Violation("bytes under one key changed", key)
        answer = "accepted"
        if not self.quiet and "provider" in self.settings.faults and dice.chance(0.5):
            answer = dice.pick(
                (
                    "429",
                    "429",
                    "no connection",
                    "timeout, effect",
                    "timeout, effect",
                    "timeout",
                    "timeout",
                    "timeout, late effect",
                    "permanent",
                )
            )
        if self.quiet and self.outage:
            answer = dice.pick(("timeout", "timeout", "timeout, effect"))
        if self.settings.keyed and key in self.provider_keys:
            return "accepted" if answer == "permanent" else answer
        if answer in ("accepted", "timeout, effect", "timeout, late effect"):
            self.provider_keys[key] = (request, self.now)
            if answer == "timeout, late effect":
                self.late.append((self.now + dice.pick((5, 20, 60)), row.address))
            else:
                self.effect(row.address)
        if answer == "429":
            self.closed_until = self.now + dice.pick((1, 5, 60, 3_600))
        return answer

    def check(self) -> None:
        """Invariants over the whole state."""
        held = [row.life for row in self.rows.values()] + [
            x.row.life for x in self.letters if x.status == "pending_review"
        ]
        if sorted(held) != sorted(self.open_lives) or self.published != len(self.open_lives) + sum(self.ends.values()):
            raise Violation(
                "books do not add up",
                f"published {self.published}, open {sorted(self.open_lives)}, held {sorted(held)}, {dict(self.ends)}",
            )
        for row in self.rows.values():
            if row.attempts > ATTEMPTS or row.attempts < 0:
                raise Violation("attempts out of bounds", f"{row.job}: {row.attempts}")
        for letter in self.letters:
            if letter.status == "pending_review" and self.fences.get(letter.row.address, (0, ""))[1] == "Delivered":
                raise Violation("delivered and dead", letter.row.job)

    # ---- the relay: pick and raise in one commit, push afterwards
    def relay(self, number: int, dice: Dice) -> bool:  # noqa: C901 - the relay's step, whole
        committed = self.relays[number]
        if committed:
            row, ref, before = committed
            self.relays[number] = None
            if self.broken("push_before_commit"):
                current = self.mine(Reference(ref.job, ref.queue, before, ref.life), before)
                if current:
                    self.move(current, "pushed", self.now + PUSH_TIMER, f"relay {number} commits the push")
                return True
            self.push(ref, before, number, dice)
            return True
        if not self.redis_answers():
            return False
        if not self.redis.epoch:
            self.redis.epoch = True
            self.pushed_rows_due("epoch missing")
        due = [row for row in self.rows.values() if row.due_at <= self.now and self.pushable(row)]
        if not due:
            return False
        row = dice.pick(due)
        if row.state == "claimed":
            if row.request and not self.broken("lost_worker_is_certain") and row.shape != "database":
                row.ambiguous = True
                row.key_clock = row.claimed_at if row.key_clock is None else row.key_clock
            row.spent, row.accepted = row.spent + 1, False
            if self.dies_with_its_worker(row):
                self.die(row, "worker lost in a call", True)
                return True
            if row.attempts >= ATTEMPTS:
                self.die(row, "worker_lost", row.ambiguous)
                return True
        self.count_push(row)
        before = row.generation
        after = before if self.broken("push_keeps_generation") else before + 1
        ref = Reference(row.job, row.queue, after, row.life)
        if self.broken("push_before_commit"):
            self.push(ref, before, number, dice)
        else:
            row.generation = after - 1
            self.move(row, "pushed", self.now + PUSH_TIMER, f"relay {number} raises for a push (was {row.state})")
        self.relays[number] = (row, ref, before)
        return True

    def pushable(self, row: Row) -> bool:
        paused = row.queue in self.pauses
        if row.state == "claimed" and self.dies_with_its_worker(row):
            return True  # it ends, it is not pushed
        if (paused and not self.broken("push_to_paused")) or (
            row.queue in MAIL_QUEUES and self.closed_until > self.now
        ):
            return False
        return (
            sum(x.queue == row.queue and x.state == "pushed" and x.due_at > self.now for x in self.rows.values())
            < OUTSTANDING
        )

    def dies_with_its_worker(self, row: Row) -> bool:
        repeats = self.settings.keyed or row.kind.resend or self.broken("lost_worker_always_repeats")
        return row.shape != "database" and row.request is not None and not repeats

    def count_push(self, row: Row) -> None:
        if row.queue in self.pauses:
            raise Violation("pushed to a paused lane", row.job)
        if row.slot > self.now:
            raise Violation("pushed before its slot", row.job)
        self.pushes[row.life, int(self.now // 60)] += 1
        if self.pushes[row.life, int(self.now // 60)] > (12 if self.quiet else 60):
            raise Violation("livelock", f"{row.job} pushed more often than it can move")

    def pushed_rows_due(self, why: str) -> None:
        """A failed push or a wiped Redis: what was pushed is due at once."""
        for row in self.rows.values():
            if row.state == "pushed":
                row.due_at = min(row.due_at, self.now)
        self.say(f"{why}: pushed rows are due at once")

    def message_id(self, job: str, queue: str, generation: int) -> str:
        return f"{queue}/{job}" if self.broken("redis_id_without_generation") else f"{queue}/{job}:{generation}"

    def push(self, ref: Reference, before: int, number: int, dice: Dice) -> None:
        """One script: remove the previous id, push the new one."""
        if not self.redis_answers() or self.fault("lost_push", dice, 0.04):
            self.pushed_rows_due(f"relay {number} cannot push {ref.job}")
            return
        message = self.message_id(ref.job, ref.queue, ref.generation)
        if not self.broken("redis_id_without_generation"):
            previous = self.message_id(ref.job, ref.queue, before)
            self.redis.bodies.pop(previous, None)
            self.redis.lists[ref.queue] = [x for x in self.redis.lists[ref.queue] if x != previous]
        if message not in self.redis.bodies:
            self.redis.bodies[message] = ref
            self.redis.lists[ref.queue].append(message)
            self.say(f"relay {number} pushes {message}")
        if self.fault("lost_push", dice, 0.04):
            self.pushed_rows_due(f"relay {number} gets no answer to its push")

    # ---- the worker: one method per step
    def worker(self, worker: Worker, dice: Dice) -> bool:
        """Take one step; answers whether anything happened."""
        if worker.frozen_until > self.now:
            return False
        return getattr(self, "worker_" + worker.phase)(worker, dice) is not False

    def clock(self, worker: Worker) -> float:
        return self.now + worker.clock_offset

    def look(self, worker: Worker, refresh: bool) -> frozenset[str]:
        """The worker's memory of pauses; a refreshing look bounds its age on the worker's own clock."""
        if refresh and self.clock(worker) - worker.view_read_at > VIEW_AGE:
            worker.view, worker.view_read_at = frozenset(self.pauses), self.clock(worker)
        return worker.view

    def worker_idle(self, worker: Worker, dice: Dice) -> bool:
        queue = (
            dice.pick(QUEUES)
            if not self.quiet
            else next((q for q in QUEUES if self.redis.lists[q] and q not in self.pauses), QUEUES[0])
        )
        if not self.redis_answers() or not self.redis.lists[queue]:
            return False
        message = self.redis.lists[queue].pop(0)
        self.redis.acks.setdefault(worker.number, []).append(message)
        if self.fault("lost_fetch", dice, 0.04):
            self.say(f"worker {worker.number}: the reply to its fetch of {message} is lost")
            return True
        if message in self.redis.bodies:
            worker.message, worker.reference, worker.phase = message, self.redis.bodies[message], "gate"
            worker.generation, worker.claim = worker.reference.generation, 0
            self.say(f"worker {worker.number} fetches {message}")
        return True

    def worker_gate(self, worker: Worker, dice: Dice) -> bool:
        """One read of the row; then nothing, a verdict settled at once, or on to the permit."""
        ref = worker.reference
        row = self.rows.get((ref.job, ref.queue))
        if row is None or row.generation != worker.generation:
            if row and row.life == ref.life and row.generation < worker.generation:
                raise Violation("Redis is ahead of Postgres", ref.job)
            worker.phase = "ack"
            return True
        worker.view, worker.view_read_at = frozenset(self.pauses), self.clock(worker)
        worker.phase = "permit"
        if self.gate_verdict(row):
            worker.phase = "verdict"
        elif row.queue in self.pauses:
            worker.phase = "gate"  # held: nothing is written
            return False
        elif row.queue in MAIL_QUEUES and self.closed_until > self.now:
            worker.result, worker.phase = "closed", "defer"
        elif self.broken("attempts_before_permit"):
            row.attempts += 1
        return True

    def gate_verdict(self, row: Row) -> str:
        if self.fenced(row.address):
            return "Duplicate"
        if self.now > row.expires_at:
            return "Expired" if row.kind.max_age else "too_late"
        if row.shape in ("plain", "template") and row.job in self.suppressed:
            return "Suppressed"
        return "" if self.repeatable(row) else "can't be repeated"

    def worker_verdict(self, worker: Worker, dice: Dice) -> None:
        """Settle what the gate saw, one statement with the generation."""
        row = self.mine(worker.reference, worker.generation)
        worker.phase = "ack"
        if row is None:
            return
        verdict = self.gate_verdict(row)
        if verdict == "Duplicate" and not self.broken("duplicate_only_acks"):
            self.end(row, verdict)
        elif verdict in ("Expired", "Suppressed"):
            self.end_not_sent(row, verdict, verdict.lower())
        elif verdict in ("too_late", "can't be repeated"):
            self.die(row, verdict, row.ambiguous)

    def worker_permit(self, worker: Worker, dice: Dice) -> None:
        luck = dice.number() if not self.quiet and worker.reference.queue in MAIL_QUEUES else 1
        if luck < 0.1:
            worker.result, worker.phase = "tenant's bucket", "defer"
        elif luck > 0.25:
            worker.phase = "recheck"

    def worker_defer(self, worker: Worker, dice: Dice) -> None:
        row = self.mine(worker.reference, worker.generation)
        if row:
            until = self.closed_until if worker.result == "closed" else self.now + dice.pick((1, 2, 5))
            self.move(row, "deferred", max(until, self.now + 1), f"Deferred: {worker.result}")
        worker.phase = "ack"

    def worker_recheck(self, worker: Worker, dice: Dice) -> None:
        """Pauses once more, from memory."""
        paused = worker.reference.queue in self.look(worker, refresh=False)
        skip = self.broken("no_check_after_permit") or self.broken("no_memory_check_before_claim")
        worker.phase = "gate" if paused and not skip else "claim"

    def worker_claim(self, worker: Worker, dice: Dice) -> None:
        """One commit: same generation, not expired, not fenced; counts the attempt, freezes what needs no rendering."""
        row = self.mine(worker.reference, worker.generation, self.broken("claim_without_generation"))
        worker.phase = "ack"
        if row is None:
            return
        if self.fenced(row.address) or self.now > row.expires_at:
            worker.phase = "gate"
            return
        if (
            self.amended("claim_repeats_gate")
            and not self.broken("no_check_after_permit")
            and (row.queue in self.pauses or self.gate_verdict(row))
        ):
            worker.phase = "gate"
            return
        if row.job in self.suppressed and self.suppressed[row.job] < self.now and row.shape in ("plain", "template"):
            raise Violation("claimed after its recipient was suppressed", row.job)
        if row.slot > self.now:
            raise Violation("attempt before its slot", row.job)
        if not self.broken("attempts_before_permit"):
            row.attempts += 1
        if row.shape == "plain" and row.request is None:
            row.request = (row.job, row.content)
        self.move(row, "claimed", self.now + LEASE, f"worker {worker.number} claims")
        self.claims += 1
        row.claim = worker.claim = self.claims
        row.claimed_at = worker.claimed_at = self.now
        worker.generation, worker.lease_end = row.generation, self.clock(worker) + LEASE
        worker.phase = "work" if row.shape == "database" else "call" if row.request else "render"
        if self.fault("lost_reply", dice, 0.03):
            self.say(f"worker {worker.number}: the claim's answer is lost; repeated, it changes no row")
            worker.phase = "ack"

    def worker_render(self, worker: Worker, dice: Dice) -> None:
        ref = worker.reference
        row = self.rows.get((ref.job, ref.queue))
        worker.phase = "freeze"
        content = row.content if row else 0
        worker.rendered = (ref.job, content)
        if KINDS[self.jobs[ref.job]].shape == "chunk":
            worker.rendered = (ref.job, content, *(m for m in ("ann", "bob", "cid") if m not in self.suppressed))

    def worker_freeze(self, worker: Worker, dice: Dice) -> None:
        row = self.mine(worker.reference, worker.generation, claim=worker.claim)
        if row is None:
            worker.phase = "ack"
            return
        late = [m for m in worker.rendered[2:] if m in self.suppressed]
        if late and self.amended("freeze_checks_suppression"):
            worker.phase = "render"
            return
        if any(self.suppressed[m] < self.now for m in late):
            raise Violation("chunk frozen with somebody suppressed", f"{row.job}: {late}")
        row.request, worker.phase = worker.rendered, "call"
        self.say(f"{row.job}: request frozen {row.request}")

    def worker_call(self, worker: Worker, dice: Dice) -> None:
        """Start the provider call, or give the attempt back."""
        row = self.rows.get((worker.reference.job, worker.reference.queue))
        left = worker.lease_end - self.clock(worker)
        if self.broken("lease_by_wall_clock"):
            left = (row.due_at if row else 0) - self.clock(worker)
        paused = (
            worker.reference.queue in self.look(worker, True)
            and self.amended("check_before_call")
            and not self.broken("no_check_after_permit")
        )
        worker.phase, worker.result = "settle", "not started"
        if paused or (left < DEADLINE and not self.broken("call_without_lease_check")):
            return
        if row is None or row.claim != worker.claim or row.due_at < self.now + DEADLINE:
            raise Violation("call started without a living claim", worker.reference.job)
        if self.now - self.pauses.get(row.queue, self.now) > PAUSE_WINDOW:
            raise Violation("request started in a paused lane", f"{row.job}: paused since {self.pauses[row.queue]:.0f}")
        if not row.ambiguous and any(
            self.suppressed.get(m, NEVER) < worker.claimed_at for m in (row.request or ())[2:]
        ):
            raise Violation("chunk sent to somebody who had left", row.job)
        worker.key = f"{row.job}:{row.queue}:{row.thaws}" + (
            f":{row.attempts}" if self.broken("key_per_attempt") else ""
        )
        row.accepted = False
        worker.started_at = self.now
        self.say(f"worker {worker.number} calls the provider for {row.job}, key {worker.key}")
        worker.result = self.provider(row, worker.key, dice)
        self.say(f"    answer on its way: {worker.result}")
        if self.quiet and self.outage and row.job in ("job1", "job2"):  # a job that kills its worker every time
            worker.phase, worker.reference = "idle", NOTHING
            self.say(f"worker {worker.number} dies of it")

    def worker_settle(self, worker: Worker, dice: Dice) -> None:
        """One commit: fence + outcome + row gone, or row moved, or dead letter."""
        if worker.result in ("accepted", "429", "permanent") and self.now - worker.started_at > DEADLINE:
            worker.result = "timeout"  # one total deadline: an answer that comes later isn't one
        self.settle(worker, dice)
        if self.fault("lost_reply", dice, 0.05):
            self.say(f"worker {worker.number}: the settle's answer is lost, it is repeated")
            self.settle(worker, dice)
        worker.phase = "ack"

    def settle(self, worker: Worker, dice: Dice) -> None:
        row = self.mine(worker.reference, worker.generation, self.broken("settle_without_generation"), worker.claim)
        if row is None:
            return
        if worker.result == "accepted":
            self.end(row, "Delivered")
        elif worker.result in ("429", "no connection", "not started"):
            if not self.broken("deferred_counts"):
                row.attempts -= 1
            refused = worker.result != "not started" or self.amended("uncalled_chunk_is_thawed")
            if (
                row.shape == "chunk"
                and row.request
                and refused
                and (not row.ambiguous or self.broken("thaw_after_ambiguous"))
            ):
                row.request, row.thaws = None, row.thaws + 1
            if row.attempts >= ATTEMPTS:
                self.die(row, "attempts spent", row.ambiguous)
            else:
                self.move(row, "deferred", max(self.now + 1, self.closed_until), f"Deferred: {worker.result}")
        elif worker.result == "permanent":
            self.die(row, "permanent", row.ambiguous)
        elif worker.result == "exception":
            self.retry(row, dice)
        else:  # the outcome is not known
            row.ambiguous = True
            row.key_clock = worker.started_at if row.key_clock is None else row.key_clock
            if not self.settings.keyed and not row.kind.resend:
                row.spent += 1
                self.die(row, "can't be repeated after a timeout", True)
            else:
                self.retry(row, dice)

    def retry(self, row: Row, dice: Dice) -> None:
        row.spent += 1
        if row.attempts >= ATTEMPTS:
            self.die(row, "attempts spent", row.ambiguous)
        else:
            wait = min(30 * 2 ** (row.attempts - 1) * (1 + dice.number()), 3_600)
            self.move(row, "retrying", self.now + wait, "Retry")

    def worker_work(self, worker: Worker, dice: Dice) -> None:
        """A database-only consumer: work, fence and row deletion in one transaction."""
        if self.fault("provider", dice, 0.2):
            worker.result, worker.phase = "exception", "settle"
            return
        if self.broken("work_without_generation"):
            self.effect((worker.reference.job, worker.reference.queue))
        row = self.mine(worker.reference, worker.generation, claim=worker.claim)
        if row and not self.broken("work_without_generation"):
            self.effect(row.address)
        if row:
            self.end(row, "Delivered")
        worker.phase = "ack"

    def worker_ack(self, worker: Worker, dice: Dice) -> bool:
        if not self.redis_answers():
            return False
        if worker.message in self.redis.acks.get(worker.number, []):
            self.redis.acks[worker.number].remove(worker.message)
        self.redis.bodies.pop(worker.message, None)
        worker.phase, worker.reference = "idle", NOTHING
        return True

    def renew(self, worker: Worker) -> None:
        """The process' renewal: moves due_at, not the generation; up to max_runtime."""
        if worker.frozen_until > self.now or worker.phase not in ("render", "freeze", "call", "settle", "work"):
            return
        row = self.rows.get((worker.reference.job, worker.reference.queue))
        if row is None or self.now - worker.claimed_at > MAX_RUNTIME:
            return
        if row.generation == worker.generation or self.broken("renewal_without_generation"):
            row.due_at = self.now + LEASE
            worker.lease_end = self.clock(worker) + LEASE

    # ---- driving
    def step(self, event: Event) -> None:  # noqa: C901, PLR0912 - one case an event
        self.now += event.gap
        for due, address in [x for x in self.late if x[0] <= self.now]:
            self.late.remove((due, address))
            self.effect(address)
        dice = Dice(event.seed)
        worker = self.workers[event.who % 3]
        job = list(self.jobs)[event.who % 4]
        match event.kind:
            case "worker":
                for _ in range(dice.pick((1, 1, 2, 3, 6, 8))):
                    self.worker(worker, dice)
            case "relay":
                for _ in range(dice.pick((1, 2, 2))):
                    self.relay(event.who % 2, dice)
            case "renew":
                self.renew(worker)
            case "publish":
                self.publish(job, int(dice.chance(0.2)), self.now + dice.pick((0, 0, 0, 20, 9 * 86_400)))
            case "cancel":
                self.cancel((job, dice.pick(KINDS[self.jobs[job]].queues)))
            case "pause":
                self.pause(dice.pick(QUEUES))
            case "resume":
                self.resume(dice.pick(QUEUES))
            case "suppress":
                who = dice.pick((job, "ann", "bob"))
                self.suppressed.setdefault(who, self.now)
                self.say(f"{who} is suppressed")
            case "replay" | "discard":
                waiting = [x for x in self.letters if x.status == "pending_review"]
                if waiting and event.kind == "replay":
                    self.replay(dice.pick(waiting), dice.chance(0.7))
                elif waiting:
                    self.discard(dice.pick(waiting))
            case "clean_fences":
                self.clean_fences()
            case "kill":
                self.say(f"worker {worker.number} is killed; the reaper gives back what it held")
                self.workers[worker.number] = Worker(worker.number, worker.clock_offset)
                self.redis.reap(worker.number)
            case "freeze":
                worker.frozen_until = max(worker.frozen_until, self.now + dice.pick((5, 15, 30, 120, 3_600, 90_000)))
                self.say(f"worker {worker.number} ({worker.phase}) is frozen until {worker.frozen_until:.0f}")
            case "suspend":  # the host stands still, and its monotonic clock with it
                if worker.frozen_until <= self.now:
                    asleep, worker.suspended = dice.pick((15, 30, 120)), True
                    worker.frozen_until, worker.clock_offset = self.now + asleep, worker.clock_offset - asleep
                self.say(
                    f"host of worker {worker.number} ({worker.phase}) is suspended until {worker.frozen_until:.0f}, with its clock"
                )
            case "wipe":
                self.redis = Redis(epoch=False)
                self.say("Redis is wiped")
            case "backup":
                self.backup = self.redis.copy()
            case "restore":
                self.redis = self.backup.copy()
                self.say("Redis is restored from an old copy")
            case "reap":
                self.redis.reap(worker.number)
                self.say(f"living worker {worker.number} is reaped")
            case "relay_crash":
                self.relays[event.who % 2] = None
                self.say(f"relay {event.who % 2} crashes")
            case "redis_stall":
                self.redis_down_until = self.now + dice.pick((2, 10, 60))
                self.say("Redis does not answer")
        self.check()

    def pause(self, queue: str) -> None:
        self.pauses.setdefault(queue, self.now)
        self.say(f"{queue} is paused")

    def resume(self, queue: str) -> None:
        if self.pauses.pop(queue, None) is not None:
            self.say(f"{queue} is resumed")

    def drain(self) -> None:
        """Faults stop, lanes open: everything must end in bounded time, with a bounded number of pushes."""
        self.quiet = True
        self.say("---- faults stop, lanes are resumed")
        self.pauses.clear()
        self.redis_down_until = 0
        for worker in self.workers:
            if worker.suspended and worker.frozen_until > self.now:
                worker.clock_offset += int(worker.frozen_until - self.now)  # woken early: it stood still for less
            worker.frozen_until = 0
        limit = max([self.now, self.closed_until, *(row.due_at for row in self.rows.values())]) + 7_200
        dice, rounds = Dice(7), 0
        while (
            self.rows
            or self.late
            or any(self.relays)
            or any(w.phase != "idle" for w in self.workers)
            or any(self.redis.lists.values())
        ):
            busy = [self.relay(0, dice), self.relay(1, dice), *(self.worker(w, dice) for w in self.workers)]
            for worker in self.workers:
                self.renew(worker)
            gap = 0
            if not any(busy):
                waits = [row.due_at for row in self.rows.values()] + [x[0] for x in self.late] + [self.closed_until]
                gap = int(max(1, min([x for x in waits if x > self.now], default=self.now + 1) - self.now))
            self.step(Event("tick", 0, 0, gap))
            rounds += 1
            if self.now > limit or rounds > 3_000:
                raise Violation(
                    "does not drain",
                    ", ".join(f"{r.job} on {r.queue} is {r.state}" for r in self.rows.values()) or "Redis",
                )


def schedule(settings: Settings, seed: int) -> list[Event]:
    dice = random.Random(seed)
    weights = ORDINARY | {
        name: weight for name, weight in (FAULTS | BEYOND).items() if weight and name in settings.faults
    }
    weights |= dict(settings.weights)
    kinds = dice.choices(sorted(weights), [weights[k] for k in sorted(weights)], k=settings.length)
    gaps = dice.choices(list(GAPS), list(GAPS.values()), k=settings.length)
    return [Event(kind, dice.randrange(12), dice.randrange(2**40), gap) for kind, gap in zip(kinds, gaps, strict=True)]


def play(settings: Settings, seed: int, events: list[Event], trace: list[str] | None = None) -> tuple[str, str] | None:
    model = Model(settings, seed, trace)
    try:
        for event in events:
            model.step(event)
        model.drain()
    except Violation as violation:
        return violation.args[0], violation.args[1]
    return None


Player = Callable[[Settings, int, list[Event]], tuple[str, str] | None]


def shrink(settings: Settings, seed: int, events: list[Event], play: Player = play) -> list[Event]:
    """Remove events, in ever smaller blocks, as long as the same invariant fails; then shorten the gaps."""
    name = (play(settings, seed, events) or ("",))[0]

    def same(candidate: list[Event]) -> bool:
        return (play(settings, seed, candidate) or ("",))[0] == name

    size = len(events) // 2
    while size:
        at = 0
        while at < len(events):
            shorter = events[:at] + events[at + size :]
            if same(shorter):
                events = shorter
            else:
                at += size
        size //= 2
    for at, event in enumerate(events):
        for gap in (0, 1, 4, 12, 30):
            shorter = [*events[:at], event._replace(gap=gap), *events[at + 1 :]]
            if gap < event.gap and same(shorter):
                events = shorter
                break
    return events


def run_block(block: tuple[Settings, int, int]) -> list[tuple[int, str]]:
    settings, first, count = block
    found = ((seed, play(settings, seed, schedule(settings, seed))) for seed in range(first, first + count))
    return [(seed, violation[0]) for seed, violation in found if violation]


def show(settings: Settings, seed: int) -> None:
    trace: list[str] = []
    events = shrink(settings, seed, schedule(settings, seed))
    violation = play(settings, seed, events, trace) or ("", "")
    print(
        f"\nseed {seed}, provider {'with' if settings.keyed else 'without'} keys, {len(events)} events left: {': '.join(violation)}"
    )
    print("\n".join("  " + line for line in trace))


def campaign(
    settings: Settings, first: int, runs: int, pool: ProcessPoolExecutor, until_first: bool
) -> tuple[int, list[tuple[int, str]]]:
    """Run seeds in blocks; answers how many ran and what failed."""
    found, done, size = [], 0, 50
    blocks = [(settings, at, min(size, first + runs - at)) for at in range(first, first + runs, size)]
    for at in range(0, len(blocks), 8):
        for block, result in zip(blocks[at : at + 8], pool.map(run_block, blocks[at : at + 8]), strict=True):
            found += result
            done += block[2]
        if found and until_first:
            break
    return done, found


def main() -> int:
    parser = argparse.ArgumentParser(description="Random schedules of notif's hand-over protocol")
    parser.add_argument("--runs", type=int, default=1000, help="per provider kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variant", choices=("amended", "design"), default="amended")
    parser.add_argument("--provider", choices=("both", "keyed", "keyless"), default="both")
    parser.add_argument("--mutate", choices=(*MUTATIONS, "all"), help="break one rule")
    parser.add_argument("--drop", choices=(*AMENDMENTS, "all"), help="take back one amendment")
    parser.add_argument("--faults", default="all", help="comma-separated: all " + " ".join(FAULTS | BEYOND))
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--length", type=int, default=220, help="events per run")
    parser.add_argument("--timelines", type=int, default=1, help="timelines to print per violated invariant")
    options = parser.parse_args()
    named = set() if options.no_faults else set(options.faults.split(","))
    faults = frozenset((named - {"all"}) | (set(FAULTS) if "all" in named else set()))
    if faults - set(FAULTS | BEYOND):
        parser.error(f"unknown fault: {', '.join(faults - set(FAULTS | BEYOND))}")
    amendments = frozenset(AMENDMENTS) if options.variant == "amended" else frozenset()
    providers = [keyed for keyed in (True, False) if options.provider in ("both", "keyed" if keyed else "keyless")]
    missed = 0
    with ProcessPoolExecutor() as pool:
        trials = [
            (name, amendments, name)
            for name in (MUTATIONS if options.mutate == "all" else [options.mutate] if options.mutate else [])
        ]
        trials += [
            (name, amendments - {name}, "")
            for name in (AMENDMENTS if options.drop == "all" else [options.drop] if options.drop else [])
        ]
        for title, rules, mutation in trials:
            line = []
            for keyed in providers:
                settings = Settings(keyed, rules, mutation, faults, options.length)
                done, found = campaign(settings, options.seed, options.runs, pool, True)
                line.append(
                    f"run {found[0][0] - options.seed + 1}: {found[0][1]}" if found else f"NOT caught in {done}"
                )
                if found and len(trials) == 1:
                    show(settings, found[0][0])
            missed += all(text.startswith("NOT") for text in line)
            print(
                f"{title:32}",
                " | ".join(f"{'keyed' if k else 'keyless'} {text}" for k, text in zip(providers, line, strict=True)),
                flush=True,
            )
        for keyed in providers if not trials else []:
            settings = Settings(keyed, amendments, "", faults, options.length)
            done, found = campaign(settings, options.seed, options.runs, pool, False)
            missed += bool(found)
            print(
                f"{options.variant}, provider {'with' if keyed else 'without'} keys: {done} runs, {len(found)} violated",
                dict(Counter(n for _, n in found)),
                flush=True,
            )
            for name in sorted({n for _, n in found}):
                for seed in [s for s, n in found if n == name][: options.timelines]:
                    show(settings, seed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
