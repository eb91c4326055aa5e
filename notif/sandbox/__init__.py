"""Stand-ins for outside services, over HTTP, behind their real clients. See docs/reference/sandbox.md."""

from notif.sandbox.client import SandboxClient
from notif.sandbox.server import Sandbox, serve

__all__ = ["Sandbox", "SandboxClient", "serve"]
