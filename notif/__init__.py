"""Notification dispatch for multi-tenant products. What product code needs: `Notifier` and `Envelope`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from notif.envelope import Envelope
    from notif.notifier import Notifier

__all__ = ["Envelope", "Notifier", "__version__"]
__version__ = "0.1.0"

_HOMES = {"Envelope": "notif.envelope", "Notifier": "notif.notifier"}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a supervisor or a test of one core module does not load the database driver."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
