"""The way of one reference through a worker, after `design.md`: gate, permit, claim, freeze, last look, call, settle.

A consumer's `handle` answers what became of the reference, in one word, and never raises: what it does not settle is left to
its row's timer, and the reference is acked either way.
"""

import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from notif.envelope import Envelope, correlated
from notif.errors import InvalidEnvelope, Unavailable
from notif.kinds import Kind, Kinds
from notif.leases import Leases
from notif.ports import Claimed, Gated, LedgerPort, Log, PoisonedRow, PoisonPort, Reference, Settlement, Stop, Terms
from notif.retry import RetryPolicy
from notif.surprises import Surprises
from notif.verdict import (
    Cancelled,
    Dead,
    Deferred,
    Delivered,
    Duplicate,
    Expired,
    Retry,
    Suppressed,
    Verdict,
)

ENDING = frozenset({"duplicate", "expired", "too_late", "unrepeatable", "foreign"})
"""Gate verdicts that need no permit: settled at once."""
UNKNOWN_KIND_WAIT = 60.0
UNKNOWN_KIND_LIMIT = 3600.0
"""Seconds: a deploy under way is waited out for an hour, looked at each minute."""
ERROR_LENGTH = 500


@dataclass(frozen=True)
class Desk:
    """What every consumer of a process works with."""

    ledger: LedgerPort
    poison: PoisonPort
    kinds: Kinds
    leases: Leases
    log: Log
    stopping: Callable[[], bool]
    """True once the process has given up waiting: then nothing is repeated any more."""
    surprises: Surprises = field(default_factory=Surprises)
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep


class Consumer(ABC):
    """What all consumers share: everything but what happens between claim and settle."""

    def __init__(self, desk: Desk, terms: Terms, retries: RetryPolicy) -> None:
        self.desk, self.terms, self.retries = desk, terms, retries

    def handle(self, ref: Reference) -> str:
        try:
            became = self._gated(ref)
        except Unavailable as error:
            # The row's timer brings it back; a claim whose answer was lost is left to its lease.
            self.desk.log.warning("left to its timer", job_id=str(ref.job_id), queue=ref.queue, error=str(error))
            return "unavailable"
        except Exception as error:  # the row's timer brings the job back
            self.desk.surprises.one(error)
            self.desk.log.exception("unexpected; left to its timer", job_id=str(ref.job_id), queue=ref.queue)
            return "error"
        self.desk.surprises.none()
        return became

    def _gated(self, ref: Reference) -> str:
        gated = self.desk.ledger.gate(ref, self.terms)
        match gated:
            case Stop():
                return self.stop(ref, ref.generation, gated)
            case PoisonedRow(error, raw):
                return self._poison(ref, raw, error)
            case Gated():
                kind = self._kind(gated)
                if kind is None:
                    return self._wait_for_kind(ref, gated)
                try:
                    with correlated(
                        gated.envelope.correlation_id
                    ):  # what a handler publishes belongs to the same story
                        return self.admit(ref, gated, kind)
                except InvalidEnvelope as error:
                    if gated.schema_hash not in ("", kind.schema_hash):
                        return self._wait_for_kind(ref, gated)
                    return self._poison(ref, raw_of(gated.envelope), str(error))
            case _:
                assert_never(gated)

    @abstractmethod
    def admit(self, ref: Reference, gated: Gated, kind: Kind) -> str:
        """From the permit on. Raises InvalidEnvelope, before the claim only, if the data does not fit the kind's model."""

    def claim(self, ref: Reference, kind: Kind, request: bytes | None) -> Claimed | Stop:
        """Claim, and hold the lease."""
        asked_at = self.desk.leases.now()
        claimed = self.desk.ledger.claim(ref, self.terms, request)
        if isinstance(claimed, Claimed):
            self.desk.leases.hold(ref, claimed.generation, kind.max_runtime, asked_at)
        return claimed

    def stop(self, ref: Reference, generation: int, stop: Stop) -> str:
        """What the gate (or the claim) saw stands against it."""
        if stop.verdict == "gone":
            return "gone"
        if stop.verdict in ENDING:
            return self.settle(ref, generation, Settlement("gate"))
        return self.settle(ref, generation, waiting(stop))

    def settle(self, ref: Reference, generation: int, settlement: Settlement) -> str:
        """One commit; repeated until its answer is known.

        Each repetition first looks for the row at this generation: a settle that did succeed finds it gone, and writes nothing.
        """
        pause = 0.1
        while True:
            try:
                return self.desk.ledger.settle(ref, generation, self.terms, settlement)
            except Unavailable as error:
                if self.desk.stopping():
                    raise
                self.desk.log.warning("settle has no answer", job_id=str(ref.job_id), queue=ref.queue, error=str(error))
                self.desk.sleep(pause)
                pause = min(pause * 2, 2.0)

    def settlement(self, verdict: Verdict, attempts: int) -> Settlement:
        """A verdict as the arguments of a settle; the backoff is drawn here, once."""
        match verdict:
            case Delivered(provider_id):
                return Settlement("delivered", provider_id=provider_id)
            case Suppressed(reason):
                return Settlement("suppressed", error=reason)
            case Dead(cause, error):
                return Settlement("dead", cause=cause, error=error[:ERROR_LENGTH])
            case Deferred(seconds, reason):
                return Settlement("deferred", wait=seconds, error=reason, refund=True)
            case Retry(error):
                wait = self.retries.wait(attempts, self.desk.chance())
                return Settlement("retry", wait=wait, error=error[:ERROR_LENGTH])
            case Duplicate() | Expired() | Cancelled():  # the protocol's own: whatever stands against it
                return Settlement("gate")
            case _:
                assert_never(verdict)

    def _kind(self, gated: Gated) -> Kind | None:
        name = gated.envelope.kind
        return self.desk.kinds.get(name) if name in self.desk.kinds else None

    def _wait_for_kind(self, ref: Reference, gated: Gated) -> str:
        """An old worker that meets a new kind or model waits: uncounted, for an hour."""
        what = f"kind {gated.envelope.kind!r} or its model is not known here"
        if gated.unknown_seconds >= UNKNOWN_KIND_LIMIT:
            return self.settle(ref, ref.generation, Settlement("dead", cause="unknown_kind", error=what))
        wait = Settlement("unknown_kind", wait=UNKNOWN_KIND_WAIT, error=f"{what}: a deploy may be under way")
        return self.settle(ref, ref.generation, wait)

    def _poison(self, ref: Reference, raw: bytes, error: str) -> str:
        self.desk.poison.bury(ref.queue, self.terms.consumer, f"{ref.job_id}:{ref.generation}", ref, raw, error)
        return "poison"


def raw_of(envelope: Envelope) -> bytes:
    """For a dead letter, whatever its size: limits are publishing's."""
    return json.dumps(envelope.fields(), sort_keys=True).encode()


LONGEST_LOOK = 60.0
"""Seconds: a person may end a closing sooner than it would itself, so it is looked at again by then."""


def waiting(stop: Stop) -> Settlement:
    """Closed: looked at again when it opens. Halted: when a person resumes it. Circuit: in a second, when its turn may come."""
    if stop.seconds is None:
        return Settlement("deferred", wait=None, state="halted", error=stop.reason, refund=True)
    if stop.verdict == "circuit":
        # Due, it waits for its turn in the outbox: as the probe, or when a probe has succeeded.
        return Settlement("deferred", wait=1.0, error=f"provider's circuit is open: {stop.reason}", refund=True)
    return Settlement(
        "deferred", wait=min(max(1.0, stop.seconds), LONGEST_LOOK), error=f"provider closed: {stop.reason}", refund=True
    )
