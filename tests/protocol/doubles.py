"""Where the product may log an exception, or bury what is no reference: in a schedule both are findings."""

import sys

from notif.ports import Log, Reference
from tests.protocol.model import Violation


class Quiet(Log):
    """Nobody reads it; an exception that the product only logs is a finding here."""

    def info(self, event: str, **values: object) -> None:
        pass

    warning = error = info

    def exception(self, event: str, **values: object) -> None:
        if event != "handler failed":  # that one is a fault of the schedule
            raise Violation("unexpected exception", f"{event}: {sys.exc_info()[1]!r}")


class NoPoison:
    """PoisonPort: nothing in a schedule is poison."""

    def bury(self, queue: str, consumer: str, message_id: str, ref: Reference | None, raw: bytes, error: str) -> bool:
        raise Violation("taken for poison", f"{message_id}: {error}")
