"""The composition root: settings in, App out. The only module that sees both use cases and adapters."""

from notif.bootstrap.app import App
from notif.bootstrap.worker import WorkerProcess

__all__ = ["App", "WorkerProcess"]
