"""The consumer of a channel's queue: one message, one provider request."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import assert_never

from pydantic import BaseModel

from notif.circuit import Circuit
from notif.closings import Closings, halt, quota, seconds_left, throttle
from notif.compose import Composer
from notif.consume import Consumer, Desk, waiting
from notif.errors import InvalidEnvelope, Unavailable
from notif.kinds import Kind
from notif.ports import Claimed, Closing, Failure, Gated, ProviderPort, Reference, Settlement, Stop, Terms
from notif.retry import RetryPolicy
from notif.verdict import (
    Accepted,
    Answer,
    Dead,
    Delivered,
    Invalid,
    NeedsPerson,
    NotReached,
    QuotaSpent,
    Retry,
    Throttled,
    Unclear,
)

SUPPRESSED = Settlement("suppressed", error="not covered by delivery.only or delivery.redirect_to")
NOT_REACHED_WAIT = 5.0
"""Seconds until a provider that could not be reached is tried again with this job, unless its circuit opens."""


@dataclass(frozen=True)
class Channel:
    """What a channel's consumers send with. `deadline`: seconds for one whole exchange."""

    provider: ProviderPort
    composer: Composer
    closings: Closings
    deadline: float
    now: Callable[[], datetime]
    circuit: Circuit


class Deliverer(Consumer):
    """Gate, permit, claim, freeze, last look, call, settle."""

    def __init__(self, desk: Desk, terms: Terms, retries: RetryPolicy, channel: Channel) -> None:
        super().__init__(desk, terms, retries)
        self._channel = channel

    def admit(self, ref: Reference, gated: Gated, kind: Kind) -> str:
        request, render = gated.request, None
        if request is None:
            parsed = kind.parse(gated.envelope.data)  # before the claim: what does not fit is no failed attempt
            recipients = self._channel.composer.recipients(kind, parsed)
            render = partial(self._rendered, ref, kind, parsed)
            if kind.template is None:  # needs no rendering: frozen by the claim itself
                request = render()
        else:  # frozen under another configuration, perhaps: a restored dump must not write to real people
            recipients = self._channel.provider.recipients(request)
        if not self._channel.composer.allowed(recipients):
            return self.settle(ref, ref.generation, SUPPRESSED)
        refused = self._permit(gated.sender_domain)
        if refused:
            return self.settle(ref, ref.generation, waiting(refused))
        claimed = self.claim(ref, kind, request)
        if isinstance(claimed, Stop):
            return self.stop(ref, ref.generation, claimed)
        try:
            return self._claimed(ref, claimed, gated.sender_domain, render)
        finally:
            self.desk.leases.drop(ref, claimed.generation)

    def _permit(self, domain: str, probe: bool = False) -> Stop | None:
        """Leave for one request, now. Until the lanes come it asks `core.provider_state` alone."""
        return self._channel.closings.against(self._channel.provider.name, self.terms.queue, domain, probe)

    def _claimed(self, ref: Reference, claimed: Claimed, domain: str, render: Callable[[], bytes] | None) -> str:
        request = claimed.request
        try:
            if request is None and render is not None:
                request = self._frozen(ref, claimed, render())
            if request is None:
                return "gone"
            refused = self._last_look(ref, claimed, domain)
        except Unavailable as error:
            refused = Settlement("deferred", wait=1.0, error=f"not started: {error}", refund=True)
        except InvalidEnvelope as error:
            refused = self.settlement(Dead("template", str(error)), claimed.attempts)
        except Exception as error:
            self.desk.log.exception("unexpected before the call", job_id=str(ref.job_id), queue=ref.queue)
            refused = self.settlement(Retry(f"{type(error).__name__} before the call"), claimed.attempts)
        name = self._channel.provider.name
        if refused or request is None:
            self._channel.circuit.not_called(name, claimed)
            return self.settle(ref, claimed.generation, refused or Settlement("gate"))
        started = self.desk.leases.now()
        answer = self._call(ref, request, claimed.key)
        if isinstance(answer, NeedsPerson) and answer.domain:
            answer = replace(answer, domain=domain)  # the row's: a halt under another name would never hold it
        became = self.settle(ref, claimed.generation, self._settlement(answer, ref, claimed, started))
        if became == "retrying":
            self._channel.circuit.counted(name, Failure(ref.job_id, ref.queue, claimed.generation + 1))
        return became

    def _call(self, ref: Reference, request: bytes, key: str) -> Answer:
        try:
            return self._channel.provider.send(request, key, self._channel.deadline)
        except Exception as error:  # a surprise of ours: whether the request went out is not known
            self.desk.log.exception("unexpected in the call", job_id=str(ref.job_id), queue=ref.queue)
            return Unclear(f"{type(error).__name__} in the call")

    def _rendered(self, ref: Reference, kind: Kind, parsed: BaseModel) -> bytes:
        return self._channel.provider.build(self._channel.composer.message(kind, parsed), ref.job_id)

    def _frozen(self, ref: Reference, claimed: Claimed, request: bytes) -> bytes | None:
        """With the permit in hand: one commit more, the first time only. None: the claim is gone."""
        return request if self.desk.ledger.freeze(ref, claimed.generation, request) else None

    def _last_look(self, ref: Reference, claimed: Claimed, domain: str) -> Settlement | None:
        """Closed meanwhile, or too little of the lease left for a whole call: not started, the attempt given back."""
        refused = self._permit(domain, claimed.probe)
        if refused:
            return waiting(refused)
        if self.desk.leases.left(ref, claimed.generation) < self._channel.deadline:
            return Settlement("deferred", wait=1.0, error="too little of the lease was left for a call", refund=True)
        return None

    def _settlement(self, answer: Answer, ref: Reference, claimed: Claimed, started: float) -> Settlement:
        """The provider's answer as a settle; a closing is made known to everybody first, or the row would come back at once."""
        name, attempts = self._channel.provider.name, claimed.attempts
        if isinstance(answer, NotReached | Unclear):
            return self._failed(answer, ref, claimed, started)
        self._channel.circuit.answered(name, claimed, isinstance(answer, Accepted))
        match answer:
            case Accepted(provider_id):
                return self.settlement(Delivered(provider_id), attempts)
            case Throttled(seconds, reset_seconds, error):
                return self._closed(throttle(name, error, seconds, reset_seconds))
            case QuotaSpent(until, error):
                return self._closed(quota(name, error, (until - self._channel.now()).total_seconds()))
            case NeedsPerson(domain, error):
                return self._closed(halt(name, domain, error))
            case Invalid(cause, error, unclear):
                dead = self.settlement(Dead(cause, error), attempts)
                return self._ambiguous(dead, started) if unclear else dead
            case _:
                assert_never(answer)

    def _failed(self, answer: NotReached | Unclear, ref: Reference, claimed: Claimed, started: float) -> Settlement:
        """The provider's failure if its circuit is open, and then no attempt; an unknown outcome leaves its mark either way."""
        error = answer.error
        held = self._channel.circuit.failed(self._channel.provider.name, ref, claimed, error)
        if held:
            settlement = waiting(Stop("circuit", 0.0, error))
        elif isinstance(answer, NotReached):
            settlement = Settlement(
                "deferred", wait=NOT_REACHED_WAIT, error=f"provider not reached: {error}", refund=True
            )
        else:
            settlement = self.settlement(Retry(error), claimed.attempts)
        return self._ambiguous(settlement, started) if isinstance(answer, Unclear) else settlement

    def _closed(self, closing: Closing) -> Settlement:
        try:
            self._channel.closings.close(closing)
        except Unavailable as error:  # the row must be settled all the same
            self.desk.log.warning("closing not written", provider=closing.provider, error=str(error))
        return waiting(Stop(closing.state, seconds_left(closing, self.terms.queue), closing.reason))

    def _ambiguous(self, settlement: Settlement, started: float) -> Settlement:
        since = self.desk.leases.now() - started
        return replace(settlement, ambiguous_since=max(0.0, since))
