"""The consumer of a product's own queue: a handler that only writes to the database.

Its work, the fence and the row's end are one transaction; its attempt is counted in an earlier commit, or a handler that kills
its process would be tried for ever.
"""

from notif.consume import Consumer, Desk
from notif.errors import Unavailable
from notif.kinds import Kind
from notif.ports import Claimed, Gated, Handler, Reference, Terms
from notif.retry import RetryPolicy
from notif.verdict import Delivered, Retry, Suppressed, Verdict


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
            verdict = self._worked(ref, claimed, gated)
            if verdict is None:
                return "gone"
            if isinstance(verdict, Delivered | Suppressed):
                return type(verdict).__name__.lower()
            return self.settle(ref, claimed.generation, self.settlement(verdict, claimed.attempts))
        finally:
            self.desk.leases.drop(ref)

    def _worked(self, ref: Reference, claimed: Claimed, gated: Gated) -> Verdict | None:
        def work(session: object) -> Verdict:
            verdict = self._handler(session, gated.envelope)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"the handler of {self.terms.consumer!r} returned {verdict!r}, which is no verdict")
            return verdict

        try:
            return self.desk.ledger.work(ref, claimed.generation, self.terms, work)
        except Unavailable:
            raise  # whether it was committed is not known: the fence knows when the lease has ended
        except Exception as error:
            self.desk.log.exception("handler failed", job_id=str(ref.job_id), consumer=self.terms.consumer)
            return Retry(f"{type(error).__name__} in the handler")
