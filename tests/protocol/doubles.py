"""Where the product may log an exception, or bury what is no reference: in a schedule both are findings."""

import sys

from notif.ports import Log, Reference
from tests.protocol.actors import Killed
from tests.protocol.model import Violation


class Quiet(Log):
    """Nobody reads it; an exception that the product only logs is a finding here."""

    def info(self, event: str, **values: object) -> None:
        pass

    warning = error = info

    def exception(self, event: str, **values: object) -> None:
        error = sys.exc_info()[1]
        if isinstance(
            error, Killed
        ):  # a process that is killed logs nothing and goes on with nothing, whoever catches it
            raise error
        if event != "handler failed":  # that one is a fault of the schedule
            raise Violation("unexpected exception", f"{event}: {error!r}")


class NoPoison:
    """PoisonPort: nothing in a schedule is poison."""

    def bury(self, queue: str, consumer: str, message_id: str, ref: Reference | None, raw: bytes, error: str) -> bool:
        raise Violation("taken for poison", f"{message_id}: {error}")
