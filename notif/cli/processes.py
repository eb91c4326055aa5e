"""`notif ps` and the roles' processes."""

from typing import Annotated

import typer

from notif.bootstrap import WorkerProcess
from notif.bootstrap.log import quiet_libraries
from notif.bootstrap.relay import run_maintenance, run_relay
from notif.bootstrap.worker import resolve
from notif.cli.environment import opened
from notif.cli.output import say, show_json, show_table
from notif.errors import NotFound
from workers.carrier import run, stop_on_signals


def add_to(app: typer.Typer) -> None:
    for command in (ps, worker, relay, maintenance):
        app.command()(command)


def worker(
    queues: Annotated[
        list[str], typer.Argument(metavar="LANE|QUEUE...", help="transactional, marketing, or queues' names")
    ],
    channel: Annotated[str | None, typer.Option(help="Only this channel's queues.")] = None,
) -> None:
    """Deliver jobs, until SIGTERM: then started calls finish, and the rest goes back."""
    quiet_libraries()
    with opened(worker=True) as app:
        run(WorkerProcess(app, resolve(app, queues, channel)), stop_on_signals())


def relay() -> None:
    """Put what is due on the queues, until SIGTERM."""
    quiet_libraries()
    with opened() as app:
        run_relay(app, stop_on_signals())


def maintenance() -> None:
    """Clean up, wake what was halted, tell people, until SIGTERM."""
    quiet_libraries()
    with opened() as app:
        run_maintenance(app, stop_on_signals())


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    check: Annotated[str | None, typer.Option(metavar="ROLE", help="Exit 1 unless this host runs one.")] = None,
) -> None:
    """List the processes that said in the last 15 s that they are there."""
    raise NotImplementedError
