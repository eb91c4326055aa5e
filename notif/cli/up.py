"""`notif up` and `notif env`."""

import os
import shlex
import sys
import threading
from typing import Annotated

import typer

from notif.bootstrap.machine import Machine
from notif.bootstrap.running import find_running
from notif.cli.ending import end_in_good_order
from notif.cli.environment import forget_libpq
from notif.cli.output import Json, say, show, show_json, show_table
from notif.config import Delivery
from notif.errors import NotFound
from notif.settings import Settings


def add_to(app: typer.Typer) -> None:
    for command in (up, env):
        app.command()(command)


def up() -> None:
    """Run all of it on this machine, until Ctrl-C: servers, sandbox and every role. The data stays in NOTIF_DATA_DIR.

    Services whose URLs (or keys) are set in the environment are used as they are; the others are embedded, or the sandbox.
    """
    settings = Settings.from_environment(os.environ)
    running = threading.Event()

    def tell(role: str, text: str) -> None:
        if running.is_set():
            say(f"{role}: {text}")

    machine = Machine(settings.data_dir, os.environ, on_event=tell)
    if machine.servers.postgres:
        forget_libpq()
    end_in_good_order()
    try:
        with machine:
            _print(machine)
            sys.stdout.flush()
            running.set()
            machine.watch()
    except KeyboardInterrupt:
        say("stopped")


def env(
    worker: Annotated[bool, typer.Option("--worker", help="For one more worker, instead of product code.")] = False,
    as_json: Json = False,
) -> None:
    """Print the URLs of the `notif up` that runs here: `eval "$(notif env)"` makes them a shell's own."""
    folder = Settings.from_environment(os.environ).data_dir
    running = find_running(folder)
    if running is None:
        raise NotFound(f"no `notif up` runs on {folder}; NOTIF_DATA_DIR names another folder")
    found = running.worker_env if worker else running.env
    if as_json:
        show_json(found)
        return
    for name, value in found.items():
        show(f"export {name}={shlex.quote(value)}")


def _print(machine: Machine) -> None:
    show_table(("SERVICE", "", "ADDRESS"), [(each.name, each.kind, each.address) for each in machine.services])
    show("")
    show_table(("ROLE", "PID"), machine.pids.items())
    show("")
    for queue in machine.unread:
        show(f"{queue}: no consumer is registered by NOTIF_APP, so nobody reads it")
    if "NOTIF_DATABASE_OWNER_URL" not in machine.operator_env:
        show("schema: not migrated from here, NOTIF_DATABASE_OWNER_URL is not set; `notif db upgrade` does it")
    show(delivery_state(machine.config.delivery, sandboxed=machine.sandboxed))
    show(f"logs and data: {machine.data_dir}; stop with Ctrl-C")


def delivery_state(delivery: Delivery, *, sandboxed: bool) -> str:
    """Whom mail reaches from here, in words."""
    if sandboxed:
        return "mail goes to the sandbox: nobody gets any"
    if delivery.redirect_to:
        return f"REAL mail, all of it to {delivery.redirect_to} (delivery.redirect_to)"
    if delivery.only:
        return f"REAL mail, only to {', '.join(delivery.only)} (delivery.only)"
    return "REAL mail goes to everybody: delivery.only and delivery.redirect_to are not set"
