"""How a command ends that runs until somebody stops it."""

import os
import signal
import sys
import threading
from typing import NoReturn

from notif.cli.output import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_in_good_order() -> None:
    """From now on Ctrl-C and SIGTERM raise KeyboardInterrupt, once: stopping takes its time, and nothing may be left."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)


def leave() -> None:
    """The end of a role's process, with whatever threads it still has: they hang in a call, and have had their time.

    The interpreter's own end would take things away from under them, and say so in a traceback.
    """
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _interrupt(*_: object) -> NoReturn:
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    say("stopping ...")
    raise KeyboardInterrupt
