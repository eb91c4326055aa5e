"""The product of the harness: its own consumer credits loyalty points, in the fence's transaction."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import text

from notif.bootstrap import App
from notif.envelope import Envelope
from notif.examples import OrderShipped
from notif.verdict import Delivered, Verdict

TABLE = """
CREATE TABLE public.loyalty (tenant_id uuid NOT NULL, job_id uuid NOT NULL, points integer NOT NULL);
GRANT SELECT, INSERT ON public.loyalty TO notif_worker
"""


class PointsEarned(BaseModel):
    """Points, and no mail."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    points: int


class OrderPlaced(OrderShipped):
    """One order: mailed, and credited."""

    points: int = 10


def credit(session: Any, envelope: Envelope) -> Verdict:
    """No constraint keeps a second credit out: whether there is one is the question."""
    session.execute(
        text("INSERT INTO public.loyalty VALUES (:tenant, :job, :points)"),
        {"tenant": envelope.tenant_id, "job": envelope.job_id, "points": envelope.data.get("points", 10)},
    )
    return Delivered()


def register(app: App) -> None:
    """NOTIF_APP."""
    app.consumer("loyalty-points", "loyalty", credit)
