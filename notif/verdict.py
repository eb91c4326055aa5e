"""How a job's handling ended, and how a provider answered: values, not exceptions."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Delivered:
    """Accepted by the provider, or done in the database. Ends the job."""

    provider_id: str = ""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Somebody has processed (or given up on) this job already. Ends the row, writes no fence."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """May not be written to. Ends the job; certain that nothing was sent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """Older than its kind's `max_age`. Ends the job; certain that nothing was sent."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Taken back by the product. Ends the job; certain that nothing was sent."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up on: a dead letter for a person. `cause` is a short name, `error` says what happened."""

    cause: str
    error: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Waiting is not failing: looked at again after `seconds`; the attempt is given back."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """A failed attempt, counted; the next follows with backoff."""

    error: str


Verdict = Delivered | Duplicate | Suppressed | Expired | Cancelled | Dead | Deferred | Retry


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider took it: `provider_id` is its name for it."""

    provider_id: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """429: certain that nothing was done. The provider is closed for `seconds` (transactional: `reset_seconds`)."""

    seconds: float
    reset_seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class QuotaSpent:
    """A quota is used up: certain that nothing was done. Closed until `until`."""

    until: datetime
    error: str


@dataclass(frozen=True, slots=True)
class NeedsPerson:
    """A halt: bad key (whole provider, `domain` empty) or an unverified sender domain (`domain` only)."""

    domain: str
    error: str


@dataclass(frozen=True, slots=True)
class NotReached:
    """No connection was made: certain that nothing was done."""

    error: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A permanent error: this request will never be accepted. `cause` is the provider's error name.

    `unclear` marks the one that means an earlier request under this key got in.
    """

    cause: str
    error: str
    unclear: bool = False


@dataclass(frozen=True, slots=True)
class Unclear:
    """The request was (or may have been) received and its outcome is not known: time-out, reset, 5xx."""

    error: str


Answer = Accepted | Throttled | QuotaSpent | NeedsPerson | NotReached | Invalid | Unclear
