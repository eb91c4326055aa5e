"""The command line: a topic a module, loaded when its command is asked for."""

from notif.cli.main import main

__all__ = ["main"]
