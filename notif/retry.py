"""When a failed attempt is tried again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Five attempts; before attempt n+1 wait `min(base · 2^(n-1) · U(1,2), cap)` seconds, drawn once."""

    attempts: int = 5
    base: float = 30.0
    cap: float = 3600.0

    def wait(self, attempt: int, chance: float) -> float:
        """Seconds to wait after the failed `attempt` (1 for the first); `chance` is uniform in [0, 1)."""
        return min(self.base * 2.0 ** min(attempt - 1, 32) * (1.0 + chance), self.cap)
