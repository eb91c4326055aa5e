"""For Python processes under libfaketime, whose clock_nanosleep (time.sleep, since Python 3.11) fails or returns at once."""

import select
import time
from typing import SupportsIndex


def _sleep(seconds: SupportsIndex | float) -> None:
    """As time.sleep: ends no earlier, whatever signal comes."""
    seconds = float(seconds)
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = _sleep
