"""What the maintenance role does by itself."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from notif.ports import Log, UpkeepPort

BATCH = 1_000
"""Rows a statement removes: it holds no lock for long."""


class Upkeep:
    """Drive it with `clean` each minute and `wake` each 10 s."""

    def __init__(
        self, store: UpkeepPort, retention: timedelta, providers: Mapping[str, Sequence[str]], log: Log
    ) -> None:
        """`retention` of decided dead letters; `providers`: name → its queues."""
        self._store, self._retention, self._providers, self._log = store, retention, providers, log

    def clean(self) -> dict[str, int]:
        """Expired fences, old deliveries and decided dead letters, in batches until none is left; how many went."""
        gone = {
            "fences": self._all(self._store.clean_fences),
            "deliveries": self._all(self._store.clean_deliveries),
            "dead_letters": self._all(lambda most: self._store.clean_letters(self._retention, most)),
        }
        self._store.clean_processes()
        if any(gone.values()):
            self._log.info("cleaned", **gone)
        return gone

    def wake(self) -> None:
        """Rows that wait for a halt which is no more."""
        for provider, queues in self._providers.items():
            self._store.wake_halted(provider, queues)

    def _all(self, batch: Callable[[int], int]) -> int:
        total = 0
        while True:
            gone = batch(BATCH)
            total += gone
            if gone < BATCH:
                return total
