"""A product's own consumer, as in docs/how-to: it credits loyalty points, and nothing else."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import dramatiq.worker
from pydantic import BaseModel, ConfigDict
from sqlalchemy import text

from notif.bootstrap import App
from notif.envelope import Envelope
from notif.errors import Unavailable
from notif.examples import OrderShipped
from notif.verdict import Dead, Deferred, Delivered, Retry, Suppressed, Verdict

TABLE = """
CREATE TABLE IF NOT EXISTS public.loyalty (tenant_id uuid NOT NULL, job_id uuid NOT NULL, points integer NOT NULL);
GRANT SELECT, INSERT ON public.loyalty TO notif_worker
"""


class PointsEarned(BaseModel):
    """`answer`: what the handler of the tests does beside crediting."""

    model_config = ConfigDict(extra="forbid")

    points: int
    answer: str = "delivered"


class OrderPlaced(OrderShipped):
    """One order: mailed, and credited."""

    points: int = 10


def kill_another(kind: type[threading.Thread]) -> None:
    """One thread of the process ends between two messages, as an asynchronous exception (a time limit's) can do it."""
    other = next(
        each for each in threading.enumerate() if isinstance(each, kind) and each is not threading.current_thread()
    )
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(other.ident or 0), ctypes.py_object(SystemExit))


PERSON = "zoe.quist@private.test"
QUOTED: dict[str, str] = {}


VIOLENT: dict[str, Callable[[], object]] = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: sys.exit("a library meant the process"),
    "quote": lambda: QUOTED[PERSON],
    "kill-worker-thread": lambda: kill_another(dramatiq.worker.WorkerThread),
    "kill-consumer-thread": lambda: kill_another(dramatiq.worker.ConsumerThread),
}
"""What a handler may do to its process."""


def credit(session: Any, envelope: Envelope) -> Verdict:
    """Runs inside the fence's transaction: the points are credited once, whatever happens to the message."""
    session.execute(
        text("INSERT INTO public.loyalty VALUES (:tenant, :job, :points)"),
        {"tenant": envelope.tenant_id, "job": envelope.job_id, "points": envelope.data.get("points", 10)},
    )
    answer = envelope.data.get("answer", "delivered")
    if answer in VIOLENT:
        VIOLENT[answer]()
    match answer:
        case "raise":
            raise ValueError("handler broke")
        case "unavailable":
            raise Unavailable("an outside thing the handler asked")
        case "retry":
            return Retry("not now")
        case "defer":
            return Deferred(60, "later")
        case "dead":
            return Dead("refused", "a person must look")
        case "suppress":
            return Suppressed("no points for this one")
    return Delivered()


def register(app: App) -> None:
    app.consumer("loyalty-points", "loyalty", credit)
