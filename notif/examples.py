"""The kind that ships as the example: what a product's own model looks like."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, HttpUrl, StringConstraints

from notif.messages import Address

_Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class OrderShipped(BaseModel):
    """Data of kind `order.shipped`: the parcel has left."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    email: Address
    name: _Line
    order_number: _Line
    carrier: _Line
    tracking_url: HttpUrl | None = None
