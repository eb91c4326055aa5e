"""Percentiles and medians of samples."""

import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: a value that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def milliseconds(values: Sequence[float]) -> dict[str, object]:
    """Of seconds: p50, p99 and the largest."""
    return {name: round(value * 1000, 2) for name, value in (
        ("p50 ms", percentile(values, 50)), ("p99 ms", percentile(values, 99)), ("max ms", max(values)),
    )}  # fmt: skip
