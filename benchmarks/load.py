"""A steady load for as long as it takes, and what of it has arrived."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle, product

from benchmarks.rig import DATA, Rig
from notif.envelope import Envelope
from notif.errors import Unavailable

BEHIND = 1.0
"""Seconds a publisher that was held up may be behind before it gives up catching up: a burst is another benchmark."""


class Load:
    """Publishes as a product would: what is refused is published again under the same id, until it is taken."""

    def __init__(self, rig: Rig, kinds: Sequence[str], spacing: float) -> None:
        """Each of ten tenants every kind in turn, one job every `spacing` seconds."""
        self._rig, self._kinds, self._spacing = rig, kinds, spacing
        self.taken: dict[str, tuple[float, float]] = {}
        """Job id → when it was given to publish, for the last time, and when publish returned; unix seconds."""
        self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends; no job is under way afterwards."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        turn = cycle(product(self._rig.tenants[:10], self._kinds))
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            tenant, kind = next(turn)
            self._publish(Envelope.new(tenant, kind, DATA[kind]))
            due = max(due + self._spacing, time.monotonic() - BEHIND)

    def _publish(self, envelope: Envelope) -> None:
        queues = self._rig.app.kinds.get(envelope.kind).all_queues
        while True:
            given = time.time()
            try:
                self._rig.app.queue.publish(queues, envelope)
            except Unavailable:
                self.refused += 1
                if self._stop.wait(self._spacing):
                    return
                continue
            self.taken[str(envelope.job_id)] = (given, time.time())
            return


class Arrivals:
    """What arrived at the sandbox since it was emptied; each look reads only what is new."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._last = rig, 0
        self.at: dict[str, float] = {}
        """Job id → when its first mail got in, unix seconds."""
        self.doubled = 0

    def look(self) -> Mapping[str, float]:
        for mail in self._rig.sandbox.mails(after=self._last):
            job, self._last = mail["tags"]["job"], mail["n"]
            self.doubled += job in self.at
            self.at.setdefault(job, datetime.fromisoformat(mail["at"]).timestamp())
        return self.at
