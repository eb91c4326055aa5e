"""How long it took until something was delivered again, after a service had come back; seen from outside, by our own clock."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LOOK = 0.5
"""Seconds between two looks at what is delivered: a recovery is known as exactly as that."""


@dataclass(frozen=True)
class Outage:
    """A fault that began or ended at `end`, in unix seconds; `away`: from then on work must go on.

    For `held` seconds after it, queues whose names begin with `queues` may rightly deliver nothing.
    """

    name: str
    end: float
    away: bool
    held: float = 0.0
    queues: str = ""


@dataclass(frozen=True)
class Sighting:
    """More was delivered on a queue than at the look before. `at`: unix seconds."""

    queue: str
    at: float


@dataclass(frozen=True)
class Recovery:
    """`seconds` from the last return to the next delivery; `held`: of them, so many are no fault of anybody's."""

    seconds: float
    after: str
    queue: str
    held: float = 0.0

    @property
    def text(self) -> str:
        return f"nothing delivered for {self.seconds:.1f} s after: {self.after}"


NONE = Recovery(0.0, "", "")


class Watch:
    """A thread that looks at `delivered` (how many, by queue) and notes what has grown. The times that rows bear are of a clock
    that is made to jump."""

    def __init__(self, delivered: Callable[[], Mapping[str, int]]) -> None:
        self._delivered, self._over = delivered, threading.Event()
        self.seen: list[Sighting] = []
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        known: Mapping[str, int] = {}
        while not self._over.wait(LOOK):
            found = self._delivered()
            now = time.time()
            self.seen += [Sighting(queue, now) for queue, count in found.items() if count > known.get(queue, 0)]
            known = {**known, **found}


def recoveries(outages: Sequence[Outage], seen: Sequence[Sighting]) -> list[Recovery]:
    """From a service's return to the next delivery, on each queue.

    Other faults that end meanwhile start the clock anew. A queue on which nothing is delivered any more is not judged here:
    what it still holds is stuck.
    """
    found = []
    for queue in sorted({each.queue for each in seen}):
        for before, after in pairwise(sorted(each.at for each in seen if each.queue == queue)):
            back = [o for o in outages if before <= o.end <= after]
            if any(o.away for o in back):
                last = max(back, key=lambda o: o.end)
                own = [
                    o.held
                    for o in outages
                    if queue.startswith(o.queues) and o.end <= after and before <= o.end + o.held
                ]
                found.append(Recovery(after - last.end, last.name, queue, max(own, default=0.0)))
    return found


def longest(found: Sequence[Recovery], *, held: bool) -> Recovery:
    """Of those that something held, or of those that nothing did."""
    return max((each for each in found if (each.held > 0) == held), key=lambda each: each.seconds, default=NONE)
