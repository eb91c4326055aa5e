"""Channels, lanes and the names of queues."""

import re
from enum import StrEnum

QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
"""A queue's (and a consumer's) name: at most 80 characters, what the fence's column holds."""


class Lane(StrEnum):
    """Which of the two lanes of a channel a job takes. It is the kind's, never the caller's."""

    TRANSACTIONAL = "transactional"
    MARKETING = "marketing"

    @property
    def other(self) -> "Lane":
        return Lane.MARKETING if self is Lane.TRANSACTIONAL else Lane.TRANSACTIONAL


def queue_of(channel: str, lane: Lane) -> str:
    """The queue of a channel's lane: `notif.{channel}.{lane}`."""
    return f"notif.{channel}.{lane}"


def parse_queue(queue: str) -> tuple[str, Lane] | None:
    """Channel and lane of a queue; None for a queue that carries no lane (`maintenance`, a product's own)."""
    prefix, _, rest = queue.partition(".")
    channel, _, lane = rest.rpartition(".")
    if prefix == "notif" and channel and lane in tuple(Lane):
        return channel, Lane(lane)
    return None
