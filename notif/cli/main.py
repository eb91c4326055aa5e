"""Where the command line begins, and where every error ends: one line on stderr, and the exit code."""

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from notif.cli.output import safe, say
from notif.cli.usage import WRONG, shown_alone
from notif.errors import ConfigurationError, NotifError

COMMANDS = {
    "demo": "demo",
    "up": "up",
    "env": "up",
    "send": "jobs",
    "cancel": "jobs",
    "explain": "jobs",
    "tenants": "tenants",
    "dead-letters": "letters",
    "resume": "providers",
    "ps": "processes",
    "worker": "processes",
    "relay": "processes",
    "maintenance": "processes",
    "sandbox": "sandbox",
    "db": "database",
    "config": "config",
    "version": "config",
}
"""Command → the module of this package that adds it by `add_to(app)`."""

DONE, FAILED = 0, 1
"""Exit codes: done · failed or refused; the third is WRONG, wrong usage or configuration."""


def main() -> None:
    """The `notif` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One command; its exit code. Whatever goes wrong is said in one line, unless `--debug` is among the arguments."""
    debug = "--debug" in arguments
    _tolerate_any_output()
    # As `python -m notif` and Dramatiq's command line do: a product's modules are found in the folder they are run in.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        code = _app(arguments)(
            [each for each in arguments if each != "--debug"], prog_name="notif", standalone_mode=False
        )
        sys.stdout.flush()
        return code or DONE
    except BrokenPipeError:
        # The reader has gone. What is buffered would raise once more while Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last one to say what happened
        if debug:
            traceback.print_exc()
        text, code = _explained(error)
        for line in text.splitlines():
            say(f"notif: {safe(line)}")
        return code


def _app(arguments: Sequence[str]) -> typer.Typer:
    """With the command that is asked for alone: a worker does not load what migrations need. All of them for `--help`."""
    asked = next((each for each in arguments if not each.startswith("-")), "")
    modules = [COMMANDS[asked]] if asked in COMMANDS else dict.fromkeys(COMMANDS.values())
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.callback(invoke_without_command=True)(_root)
    gc.disable()  # while modules are loaded, all of which stay, it takes a fifth of a command's time
    for module in modules:
        importlib.import_module(f"notif.cli.{module}").add_to(app)
    gc.enable()
    return app


def _root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from. May stand anywhere.")] = False,
) -> None:
    """Dispatch notifications for a multi-tenant product. `notif up` runs all of it on this machine."""
    assert not debug, "taken out by run()"
    shown_alone(context)


def _explained(error: Exception) -> tuple[str, int]:
    match error:
        case ConfigurationError():
            return str(error), WRONG
        case NotifError():
            return str(error), FAILED
        case typer.TyperException():
            return error.format_message() or "see `notif --help`", error.exit_code
        case _:
            return f"unexpected {type(error).__name__}: {error} (`--debug` shows where)", FAILED


def _tolerate_any_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
