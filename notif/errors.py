"""Everything notif raises on purpose.

NotifError
├── ConfigurationError          the process does not boot
├── Rejected                    publishing (or an operator's request) was refused, nothing changed
│   ├── InvalidEnvelope         a field of the envelope or of its data is wrong
│   ├── TooLarge                the envelope is larger than the limit
│   ├── UnknownKind · UnknownQueue · UnknownTenant
│   ├── WrongLane               the queue belongs to the other lane
│   └── JobConflict             this job id is known with other content
├── NotFound                    no such job, dead letter, tenant
├── Refused                     the state of things forbids it (a replay without a living key, …)
└── Unavailable                 Postgres, Redis or an outside service does not answer
"""

import difflib
from collections.abc import Iterable


class NotifError(Exception):
    """Base of all; its text is one clear sentence for a person."""


class ConfigurationError(NotifError):
    """A setting is wrong. Bad configuration does not boot."""


class Rejected(NotifError):
    """The request was refused and changed nothing."""


class InvalidEnvelope(Rejected):
    """A field of the envelope, or of its data, is wrong; the text names it."""


class TooLarge(Rejected):
    """The encoded envelope exceeds the limit (256 KiB unless configured)."""


class UnknownKind(Rejected):
    """No kind of this name is configured."""


class UnknownQueue(Rejected):
    """No queue of this name is configured."""


class UnknownTenant(Rejected):
    """No active tenant has this id."""


class WrongLane(Rejected):
    """The lane is the kind's, not the caller's: the queue named belongs to the other lane."""


class JobConflict(Rejected):
    """The same job id was published with other content while its row lives."""


class NotFound(NotifError):
    """What was asked for does not exist."""


class Refused(NotifError):
    """The request is well formed, but the state of things forbids it."""


class Unavailable(NotifError):
    """A service that is needed does not answer."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """A sentence that helps after a typo: the nearest choice, else the choices there are."""
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is known"
