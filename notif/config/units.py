"""Durations and sizes as they are written: `250ms 5s 15m 1h 7d`, `256KiB`."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from notif.messages import wrong

_DURATIONS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_SIZES = {"MiB": 1024 * 1024, "KiB": 1024, "B": 1}
_LONGEST = timedelta(days=3650)


def duration(value: Any) -> timedelta:
    """`15m` → 15 minutes. One whole number above 0 and one unit, at most 3650d."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        raise wrong(f"{value} has no unit; write {value}s for seconds, or another of ms, m, h, d")
    match = re.fullmatch(r"([0-9]{1,12})(ms|[smhd])", value) if isinstance(value, str) else None
    if not match:
        raise wrong(f"{value!r} is no duration; write a whole number and a unit, like 250ms, 5s, 15m, 1h or 7d")
    amount, unit = int(match[1]), _DURATIONS[match[2]]
    if amount == 0:
        raise wrong("must be longer than nothing")
    if amount > _LONGEST // unit:
        raise wrong(f"{value} is too long; at most {show_duration(_LONGEST)}")
    return amount * unit


def show_duration(value: timedelta) -> str:
    """The shortest way to write it: `7d`, not `168h`."""
    unit = next(name for name, size in _DURATIONS.items() if not value % size)
    return f"{value // _DURATIONS[unit]}{unit}"


def size(value: Any) -> int:
    """`256KiB` → 262144 bytes."""
    match = re.fullmatch(r"([0-9]{1,9})(B|KiB|MiB)", value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not match:
        raise wrong(f"{value!r} is no size; write a whole number and a unit, like 512B, 256KiB or 1MiB")
    return int(match[1]) * _SIZES[match[2]]


def show_size(value: int) -> str:
    """The shortest way to write it: `256KiB`."""
    unit = next(name for name, bytes_ in _SIZES.items() if not value % bytes_)
    return f"{value // _SIZES[unit]}{unit}"


def lasting(low: str, high: str) -> AfterValidator:
    """A duration between these two, both allowed."""
    lowest, highest = duration(low), duration(high)

    def check(value: timedelta) -> timedelta:
        if not lowest <= value <= highest:
            raise wrong(f"{show_duration(value)} is out of range; it is {low} to {high}")
        return value

    return AfterValidator(check)


def sized(low: str, high: str) -> AfterValidator:
    """A size between these two, both allowed."""
    lowest, highest = size(low), size(high)

    def check(value: int) -> int:
        if not lowest <= value <= highest:
            raise wrong(f"{show_size(value)} is out of range; it is {low} to {high}")
        return value

    return AfterValidator(check)


Duration = Annotated[timedelta, BeforeValidator(duration), PlainSerializer(show_duration, when_used="json")]
Size = Annotated[int, BeforeValidator(size), PlainSerializer(show_size, when_used="json")]
