"""How a command ends that runs until somebody stops it."""

import signal
from typing import NoReturn

from notif.cli.output import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_in_good_order() -> None:
    """From now on Ctrl-C and SIGTERM raise KeyboardInterrupt, once: stopping takes its time, and nothing may be left."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    say("stopping ...")
    raise KeyboardInterrupt
