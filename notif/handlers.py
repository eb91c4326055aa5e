"""The consumer of a product's own queue: a handler that only writes to the database.

Its work, the fence and the row's end are one transaction; its attempt is counted in an earlier commit, or a handler that kills
its process would be tried for ever.
"""

from notif.consume import Consumer, Desk
from notif.kinds import Kind
from notif.ports import Claimed, Gated, Handler, Reference, Session, Settlement, Terms
from notif.retry import RetryPolicy
from notif.verdict import Dead, Deferred, Delivered, Retry, Suppressed

ANSWERS = (Delivered, Suppressed, Dead, Deferred, Retry)
"""What a handler may answer; the other verdicts are the protocol's own."""


class HandlerConsumer(Consumer):
    """Gate, claim, then handler, fence and row in one commit."""

    def __init__(self, desk: Desk, terms: Terms, retries: RetryPolicy, handler: Handler) -> None:
        super().__init__(desk, terms, retries)
        self._handler = handler

    def admit(self, ref: Reference, gated: Gated, kind: Kind) -> str:
        kind.parse(gated.envelope.data)
        claimed = self.claim(ref, kind, None)
        if not isinstance(claimed, Claimed):
            return self.stop(ref, ref.generation, claimed)
        try:
            # If this raises Unavailable, whether it was committed is not known: the fence knows when the lease has ended.
            return self.desk.ledger.work(
                ref, claimed.generation, self.terms, lambda session: self._worked(session, ref, claimed, gated)
            )
        finally:
            self.desk.leases.drop(ref, claimed.generation)

    def _worked(self, session: Session, ref: Reference, claimed: Claimed, gated: Gated) -> Settlement:
        try:
            verdict = self._handler(session, gated.envelope)
            if not isinstance(verdict, ANSWERS):
                raise TypeError(f"it returned {type(verdict).__name__}, not {', '.join(a.__name__ for a in ANSWERS)}")
            session.check()
        except BaseException as error:  # SystemExit and CancelledError too: an attempt that failed, not a worker lost
            self.desk.log.exception("handler failed", job_id=str(ref.job_id), consumer=self.terms.consumer)
            detail = f": {error}" if isinstance(error, TypeError) else ""
            verdict = Retry(f"{type(error).__name__} in the handler{detail}")
        return self.settlement(verdict, claimed.attempts)
