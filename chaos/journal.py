"""What the product published, by its own books."""

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Published:
    """One job as the product knows it. `taken`: publishing it has succeeded; `cancelled`: per queue, if that was answered."""

    job: str
    kind: str
    queues: tuple[str, ...]
    at: float
    taken: bool = False
    refusals: int = 0
    cancelled: dict[str, bool] = field(default_factory=dict)


class Journal:
    """What was published. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[Published] = []
        self.surprises: list[str] = []
        """Errors that the product should not have met."""

    def add(self, jobs: Sequence[Published]) -> None:
        with self._lock:
            self._jobs.extend(jobs)

    def all(self) -> list[Published]:
        with self._lock:
            return list(self._jobs)

    def one_of_the_last(self, chance: random.Random, most: int = 60) -> Published | None:
        with self._lock:
            return chance.choice(self._jobs[-most:]) if self._jobs else None

    def count(self) -> int:
        return len(self._jobs)
