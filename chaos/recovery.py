"""How long it took until something was delivered again, after a service had come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.evidence import End


@dataclass(frozen=True)
class Outage:
    """A fault that was in force. Times in unix seconds; `away`: a service was gone for somebody."""

    name: str
    begin: float
    end: float
    away: bool


@dataclass(frozen=True)
class Recovery:
    seconds: float
    after: str
    queue: str


def longest_recovery(outages: Sequence[Outage], ends: Sequence[End]) -> Recovery:
    """From a service's return to the next delivery on each queue.

    Other faults that end meanwhile start the clock anew. A queue on which nothing is delivered any more is not judged here:
    what it still holds is stuck.
    """
    worst = Recovery(0.0, "", "")
    for queue in sorted({end.queue for end in ends}):
        delivered = sorted(end.at for end in ends if end.queue == queue and end.verdict == "delivered")
        for before, after in pairwise(delivered):
            back = [o for o in outages if before <= o.end <= after]
            if any(o.away for o in back):
                last = max(back, key=lambda o: o.end)
                worst = max(worst, Recovery(after - last.end, last.name, queue), key=lambda r: r.seconds)
    return worst
