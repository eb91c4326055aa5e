"""A failing provider is not a failing job: five failures in a row over three jobs or more open its circuit (design.md, "Limits").

Failures are counted per process; the opening holds for all, through `core.provider_state`. While it is open one claim at a time
is its probe, 2 s after the opening, then after twice as long each time, at most 20 s (ADR 0024); `core.claim` decides which one.
"""

import contextlib
import threading
from dataclasses import dataclass, field
from uuid import UUID

from notif.closings import Closings
from notif.errors import Unavailable
from notif.ports import CircuitPort, Claimed, Failure, Log, Reference

FAILURES, JOBS = 5, 3


@dataclass
class _Streak:
    """Failures since the provider last answered. One job's alone may be the job's own."""

    failures: int = 0
    jobs: set[UUID] = field(default_factory=set)
    counted: list[Failure] = field(default_factory=list)


class Circuit:
    """Shared by a process' threads. What is told while a row is settled raises no Unavailable: it must be settled all the same."""

    def __init__(
        self, store: CircuitPort, closings: Closings, log: Log, failures: int = FAILURES, jobs: int = JOBS
    ) -> None:
        self._store, self._closings, self._log = store, closings, log
        self._failures, self._jobs = failures, jobs
        self._lock = threading.Lock()
        self._streaks: dict[str, _Streak] = {}

    def refresh(self) -> None:
        """Read the closings anew; what was counted before another process opened a circuit is given back. Raises Unavailable."""
        self._closings.refresh()
        with self._lock:
            streaks = [(name, self._streaks.pop(name)) for name in list(self._streaks) if self._closings.circuit(name)]
        for provider, streak in streaks:
            self._give_back(provider, streak.counted)

    def failed(self, provider: str, ref: Reference, claimed: Claimed, error: str) -> bool:
        """A call had no outcome. True: the circuit is open, the attempt is not the job's."""
        if claimed.probe:
            self._probed(provider, claimed, "failed", error)
            return True
        if self._closings.circuit(provider):
            return True
        with self._lock:
            streak = self._streaks.setdefault(provider, _Streak())
            streak.failures += 1
            streak.jobs.add(ref.job_id)
            if streak.failures < self._failures or len(streak.jobs) < self._jobs:
                return False
        self._open(provider, error)
        return True

    def counted(self, provider: str, failure: Failure) -> None:
        """The attempt of a failure was spent: it is given back if the circuit opens, or did while the row was settled."""
        with self._lock:
            if not self._closings.circuit(provider):
                self._streaks.setdefault(provider, _Streak()).counted.append(failure)
                return
        self._give_back(provider, [failure])

    def answered(self, provider: str, claimed: Claimed, accepted: bool) -> None:
        """The provider answered, whatever it said. `accepted`: it took the message, which ends a halt too."""
        with self._lock:
            self._streaks.pop(provider, None)
        if claimed.probe:
            self._probed(provider, claimed, "accepted" if accepted else "answered")

    def not_called(self, provider: str, claimed: Claimed) -> None:
        """No call was made under this claim: if it was the probe, the next one is."""
        if claimed.probe:
            self._probed(provider, claimed, "none")

    def _open(self, provider: str, error: str) -> None:
        try:
            opened = self._store.open(provider, error)
        except Unavailable as unavailable:  # the next failure tries again
            self._log.warning("circuit not opened", provider=provider, error=str(unavailable))
            return
        if opened:
            self._log.warning("circuit opened", provider=provider, error=error)
        self._look()
        with self._lock:  # after the refresh: whoever counts from here on gives back by itself
            streak = self._streaks.pop(provider, _Streak())
        self._give_back(provider, streak.counted)

    def _probed(self, provider: str, claimed: Claimed, outcome: str, error: str = "") -> None:
        try:
            ended = self._store.probed(provider, claimed.generation, outcome, error)
        except Unavailable as unavailable:  # the next probe follows when this one's lease would have ended
            self._log.warning("probe not noted", provider=provider, outcome=outcome, error=str(unavailable))
            return
        if ended:
            self._log.info("provider goes on", provider=provider)
        self._look()

    def _look(self) -> None:
        with contextlib.suppress(Unavailable):  # it is read again within 250 ms
            self._closings.refresh()

    def _give_back(self, provider: str, failures: list[Failure]) -> None:
        if not failures:
            return
        try:
            self._store.give_back(failures)
        except Unavailable as unavailable:
            self._log.warning("attempts not given back", provider=provider, error=str(unavailable))
