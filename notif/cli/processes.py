"""`notif ps` and the roles' processes."""

import socket
from typing import Annotated, Any

import typer

from notif.bootstrap import WorkerProcess
from notif.bootstrap.log import quiet_libraries
from notif.bootstrap.relay import run_maintenance, run_relay
from notif.bootstrap.worker import resolve
from notif.cli.environment import opened
from notif.cli.output import Json, safe, show, show_json, show_table
from notif.cli.providers import described
from notif.errors import NotFound
from notif.ports import Process
from workers.carrier import leave, run, stop_on_signals


def add_to(app: typer.Typer) -> None:
    for command in (ps, worker, relay, maintenance):
        app.command()(command)


def worker(
    queues: Annotated[
        list[str], typer.Argument(metavar="LANE|QUEUE", help="transactional, marketing, or queues' names")
    ],
    channel: Annotated[str | None, typer.Option(help="Only this channel's queues.")] = None,
) -> None:
    """Deliver jobs, until SIGTERM: then started calls finish, and the rest goes back."""
    quiet_libraries()
    with opened(worker=True) as app:
        run(WorkerProcess(app, resolve(app, queues, channel)), stop_on_signals())
    leave()


def relay() -> None:
    """Put what is due on the queues, until SIGTERM."""
    quiet_libraries()
    with opened() as app:
        run_relay(app, stop_on_signals())
    leave()


def maintenance() -> None:
    """Clean up, wake what was halted, tell people, until SIGTERM."""
    quiet_libraries()
    with opened() as app:
        run_maintenance(app, stop_on_signals())
    leave()


def ps(
    check: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="Exit 1 unless this host runs it: relay, worker, worker:QUEUE ..."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the processes that said within the last 15 s that they are there, and the providers that take no request."""
    with opened() as app:
        found = app.processes.list()
        closed = [] if as_json or check else app.closings.read()
    if check is not None:
        role, _, queue = check.partition(":")
        host = socket.gethostname()
        found = [x for x in found if x.role == role and x.host == host and (not queue or queue in x.lane.split())]
        if not found:
            raise NotFound(f"no {check} on {host} has said within 15 s that it is there")
    if as_json:
        show_json([_keys(process) for process in found])
    else:
        show_table(("ROLE", "LANE", "PID", "HOST", "LEADER", "SINCE"), [list(_keys(each).values()) for each in found])
    for closing in closed:
        show(safe(described(closing)))


def _keys(process: Process) -> dict[str, Any]:
    """`leader` is None: these roles have none."""
    p = process
    return {"role": p.role, "lane": p.lane, "pid": p.pid, "host": p.host, "leader": None, "since": p.since}
