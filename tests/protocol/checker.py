"""The checker's memory, and its judgement of every change that it sees in the real tables.

It knows nothing of how the functions work: it compares the tables before and after each call and asks whether this caller
could make this change. What it remembers, the protocol never reads.
"""

from collections import Counter

from tests.protocol.memory import By, Life, Memory, Story
from tests.protocol.model import ATTEMPTS, DEADLINE, KEY_LIFETIME, KEY_MARGIN, PAUSE_WINDOW, Violation
from tests.protocol.stage import LEDGER, MAIL_QUEUES, Address, Seen, SeenLetter, SeenRow, Stage
from tests.protocol.world import KINDS

NOT_SENT = ("cancelled", "expired", "suppressed")
"""Verdicts which assert that nothing was sent."""
HELD = ("gate", "claim", "freeze", "settle", "work", "renew")
"""What a worker may only do to the row it holds."""
QUIETLY = {
    "freeze": (("claimed",), "request"),
    "renew": (("claimed",), "due_at"),
    "requeue": (("pushed",), "due_at"),
    "resume": (("halted", "ready"), "due_at"),
    "wake": (("halted",), "due_at"),
}
"""What may change a row without a new generation: in which states, and which column."""
PUSHES_PER_MINUTE = 60
DOMAINS = tuple(f"{name}.test" for name in KINDS)


class Checker(Memory):
    """Call `observe` after everything that may have changed a table."""

    def __init__(self, stage: Stage, keyed: bool, trace: list[str] | None) -> None:
        super().__init__(stage, trace)
        self.keyed, self.quiet = keyed, False
        self.last = 0
        self.seen = stage.look(0)
        self.rows: dict[Address, Life] = {}
        self.letters: dict[int, Life] = {}
        self.published = self.claims = self.stays = self.moves = 0
        self.pushes: Counter[tuple[int, int]] = Counter()
        self.pushed: dict[tuple[Address, int], int] = {}
        """Which stay a reference was raised for."""
        self.closed_since: dict[tuple[str, str], float] = {}

    def closed(self, queue: str, domain: str, generation: int = 0, seen: Seen | None = None) -> str:
        """What forbids a call at this generation now; empty: nothing."""
        for closing in (seen or self.seen).closings:
            if closing.stands_against(queue, domain, generation, self.now):
                return f"{closing.state} {closing.domain}".strip()
        return ""

    def repeatable(self, key_since: float | None, resend: bool) -> bool:
        fresh = self.keyed and key_since is not None and self.now - key_since < KEY_LIFETIME - KEY_MARGIN
        return key_since is None or resend or fresh

    def fenced(self, address: Address, seen: Seen) -> bool:
        return address in seen.fences or any(letter.address == address for letter in seen.letters.values())

    # ---- one change after the other
    def observe(self, by: By) -> None:
        """Look at the tables and judge what has changed since the last look."""
        old, new = self.seen, self.stage.look(self.last)
        self.seen = new
        ended = {address: verdict for _, address, verdict in new.ended}
        if len(ended) != len(new.ended):
            raise Violation("two end states", f"one call ended a row twice: {new.ended}")
        self.last = max([self.last, *(number for number, _, _ in new.ended)])
        buried = {letter.address: number for number, letter in new.letters.items() if number not in old.letters}
        taken = {letter.address: number for number, letter in old.letters.items() if number not in new.letters}
        for address in sorted(old.rows.keys() | new.rows.keys()):
            before, after = old.rows.get(address), new.rows.get(address)
            if before == after:
                continue
            self.moves += 1
            if before is None and after is not None:
                self.appeared(by, address, after, taken.pop(address, 0), old)
            elif after is None and before is not None:
                self.vanished(by, address, before, ended.pop(address, ""), buried.pop(address, 0))
            elif before is not None and after is not None:
                self.changed(by, address, before, after)
        for address, number in taken.items():
            if by.op != "discard" or not self.fenced(address, new):
                raise Violation("books do not add up", f"the letter of {self.name(address)} went by {by.op}")
            self.close(self.letters.pop(number), "discarded")
        if ended or buried:
            raise Violation("books do not add up", f"{ended or buried} ended without a row")
        self.look_around(old, new)

    def look_around(self, old: Seen, new: Seen) -> None:
        """What holds of the tables as a whole."""
        for address, count in new.booked.items():
            if count > old.booked.get(address, 0):
                self.effect(address, count - old.booked.get(address, 0))
        held = [life.number for life in (*self.rows.values(), *self.letters.values())]
        if sorted(held) != sorted(self.open) or self.published != len(self.open) + sum(self.ends.values()):
            raise Violation(
                "books do not add up", f"open {sorted(self.open)}, held {sorted(held)}, ended {dict(self.ends)}"
            )
        for queue in MAIL_QUEUES:
            for domain in DOMAINS:
                if self.closed(queue, domain) and not self.closed(queue, domain, seen=old):
                    self.closed_since[queue, domain] = self.now
        for letter in new.letters.values():
            if letter.address in new.fences:
                raise Violation("ended and dead", self.name(letter.address))

    def appeared(self, by: By, address: Address, row: SeenRow, letter: int, old: Seen) -> None:
        self.stays += 1
        if by.op == "publish":
            if not self.fenced(address, old):  # nobody remembers this id: by design a new job
                self.stories[address] = Story(allowed=float("inf") if row.resend and address[1] != LEDGER else 1)
            self.published += 1
            self.rows[address] = Life(self.published, slot=row.due_at, stay=self.stays)
            self.open.add(self.published)
            self.say(f"publish {self.name(address)} (generation {row.generation}), due {row.due_at:.0f}")
        elif by.op == "replay" and letter:
            life = self.rows[address] = self.letters.pop(letter)
            self.replayed(by, address, old.letters[letter], life)
            life.slot, life.stay, life.spent, life.claim = self.now, self.stays, 0, 0
            self.say(f"replayed {self.name(address)} (generation {row.generation}, key {row.key_number})")
            if address in old.fences:
                raise Violation("replayed behind a fence", f"{self.name(address)}: can only be a Duplicate")
        else:
            raise Violation("row from nowhere", f"{self.name(address)} by {by.op}")

    def replayed(self, by: By, address: Address, letter: SeenLetter, life: Life) -> None:
        story = self.stories[address]
        story.not_sent = ""
        if not self.repeatable(letter.key_since, letter.resend):
            if not by.accept:
                raise Violation("replayed without leave", f"{self.name(address)}: no living key protects it")
            story.allowed += 1
            life.accepted = True

    def judge_holder(self, by: By, address: Address, row: SeenRow) -> None:
        """Whoever lost its row changes nothing."""
        held = (address, row.generation, self.rows[address].stay)
        if by.op in HELD and held != (by.address, by.generation, by.stay):
            raise Violation(
                "stale generation changed a row",
                f"{self.name(address)}: held {by.generation}, row is at {row.generation}",
            )

    def lost_or_used(self, by: By, life: Life, row: SeenRow) -> None:
        """Count the attempts that were really used: by an answer that isn't one, or by a lost worker."""
        if row.state != "claimed":
            return
        if by.op == "pick" and row.due_at > self.now:
            raise Violation("taken from a living worker", f"its lease ends at {row.due_at:.0f}")
        if by.op == "pick" or by.used:
            life.spent += 1
            life.accepted = False

    def changed(self, by: By, address: Address, before: SeenRow, after: SeenRow) -> None:
        life = self.rows[address]
        self.judge_holder(by, address, before)
        columns = {name for name, x, y in zip(SeenRow._fields, before, after, strict=True) if x != y}
        if before.request is not None and after.request != before.request:
            raise Violation("bytes of a frozen request changed", self.name(address))
        if before.generation == after.generation:
            self.stayed(by, address, after, columns)
            return
        if after.generation != before.generation + 1:
            raise Violation("generation jumped", f"{self.name(address)}: {before.generation} to {after.generation}")
        self.lost_or_used(by, life, before)
        life.claim = 0
        self.say(
            f"{self.name(address)}: {before.state} to {after.state} by {by.op} (generation {after.generation}, "
            f"attempts {after.attempts}{', ambiguous' if after.ambiguous else ''}, due {after.due_at:.0f})"
        )
        if by.op == "pick":
            self.pushed[address, after.generation] = life.stay
            self.judge_push(address, life, after)
        elif by.op == "claim":
            self.judge_claim(address, life, before, after)
        elif by.op in ("settle", "work") and after.state not in ("claimed", "pushed"):
            life.slot = after.due_at
        else:
            raise Violation("moved by somebody who may not", f"{self.name(address)}: {by.op}")
        used = life.spent + (after.state == "claimed")
        if after.attempts != used or used > ATTEMPTS:
            raise Violation("attempts out of bounds", f"{self.name(address)}: {after.attempts} counted, {used} used")

    def stayed(self, by: By, address: Address, after: SeenRow, columns: set[str]) -> None:
        """Changed without a new generation."""
        states, column = QUIETLY.get(by.op, ((), ""))
        if columns != {column} or after.state not in states:
            raise Violation(
                "moved without a new generation",
                f"{self.name(address)}: {by.op} changed {sorted(columns)} of a {after.state} row",
            )
        if after.state in ("halted", "ready"):
            self.rows[address].slot = after.due_at
        if "request" in columns:
            self.say(f"{self.name(address)}: request frozen")

    def judge_push(self, address: Address, life: Life, after: SeenRow) -> None:
        self.pushes[life.number, int(self.now // 60)] += 1
        if self.pushes[life.number, int(self.now // 60)] > PUSHES_PER_MINUTE:
            raise Violation("livelock", f"{self.name(address)} is raised more often than it can move")
        if after.state == "halted":
            life.slot = after.due_at
            if life.slot <= self.now:
                raise Violation("livelock", f"{self.name(address)} is halted until a moment that has passed")
            return
        if after.state != "pushed":
            raise Violation("moved by somebody who may not", f"{self.name(address)}: the relay made it {after.state}")
        if life.slot > self.now:
            raise Violation("pushed before its slot", self.name(address))
        closed = self.closed(address[1], after.domain)
        if closed and self.now < after.expires_at:  # an expired one is pushed to its end
            raise Violation("pushed to a closed provider", f"{self.name(address)}: {closed}")

    def judge_claim(self, address: Address, life: Life, before: SeenRow, after: SeenRow) -> None:
        self.claims += 1
        life.claim = self.claims
        if after.state != "claimed" or before.state != "pushed":
            raise Violation("claimed what was not pushed", f"{self.name(address)}: {before.state} to {after.state}")
        if life.slot > self.now:
            raise Violation("attempt before its slot", self.name(address))
        against = {
            "closed": self.closed(address[1], after.domain, after.generation),
            "a fence or letter": self.fenced(address, self.seen),
            "its age": after.expires_at < self.now,
            "the age of its key": not self.repeatable(before.key_since, before.resend),
        }
        if any(against.values()):
            raise Violation(
                "claimed against the gate", f"{self.name(address)}: {[what for what, so in against.items() if so]}"
            )

    def vanished(self, by: By, address: Address, row: SeenRow, verdict: str, letter: int) -> None:
        """One end: a delivery, or a dead letter."""
        self.judge_holder(by, address, row)
        life = self.rows.pop(address)
        if bool(verdict) == bool(letter):
            raise Violation(
                "books do not add up", f"{self.name(address)} is gone: {verdict or 'no end'}, letter {letter}"
            )
        self.lost_or_used(by, life, row)
        life.claim = 0
        if letter:
            self.letters[letter] = life
            self.buried(address, life, row, self.seen.letters[letter])
            return
        self.say(f"{self.name(address)}: {verdict}, row gone")
        if address not in self.seen.fences and not (verdict == "duplicate" and self.fenced(address, self.seen)):
            raise Violation("ended without a fence", f"{self.name(address)}: {verdict}")
        self.close(life, verdict)
        if verdict in NOT_SENT:
            self.claims_not_sent(address, verdict)

    def buried(self, address: Address, life: Life, row: SeenRow, letter: SeenLetter) -> None:
        self.say(f"{self.name(address)}: dead letter, {letter.cause}, outcome {letter.outcome}")
        dies_with_its_worker = row.request is not None and not self.keyed and not row.resend
        if (
            letter.cause in ("attempts_spent", "worker_lost")
            and life.spent != ATTEMPTS
            and not (letter.cause == "worker_lost" and dies_with_its_worker)
        ):
            raise Violation(
                "dead before five attempts", f"{self.name(address)}: {life.spent} used, {letter.attempts} counted"
            )
        if life.accepted and letter.cause == "unrepeatable":
            raise Violation("accepted replay ends without a call", self.name(address))
        if letter.outcome == "failed":
            self.claims_not_sent(address, "dead (failed)")

    # ---- a provider call
    def judge_call(self, address: Address, claim: int) -> None:
        """At the moment a request starts."""
        row, life = self.seen.rows.get(address), self.rows.get(address)
        if row is None or life is None or life.claim != claim or row.due_at < self.now + DEADLINE:
            raise Violation("call started without a living claim", self.name(address))
        since = self.closed_since.get((address[1], row.domain), self.now)
        if self.closed(address[1], row.domain, row.generation) and self.now - since > PAUSE_WINDOW:
            raise Violation("request started at a closed provider", f"{self.name(address)}: closed since {since:.0f}")
        life.accepted = False

    def judge_reference(self, address: Address, generation: int) -> None:
        """Redis never runs ahead of Postgres."""
        row = self.seen.rows.get(address)
        if row is not None and row.generation < generation and (address, generation) not in self.pushed:
            raise Violation("Redis is ahead of Postgres", self.name(address))

    def must_drain(self) -> str:
        return ", ".join(f"{self.name(a)} is {row.state}" for a, row in self.seen.rows.items()) or "Redis"
