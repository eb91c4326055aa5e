"""`notif demo`, which `./run demo` calls."""

import shlex
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from notif.cli.ending import end_in_good_order
from notif.cli.output import WIDE
from notif.demo import SCENES, Stage, opened


def add_to(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running afterwards, and print the addresses.")] = False,
) -> None:
    """Start everything here in a throw-away folder, send real jobs through the sandbox, and show what happens."""
    end_in_good_order()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    with opened(console) as stage:
        console.print(
            "[bold]notif[/bold] is running here: a real PostgreSQL, a real Valkey, a worker for each queue, the relay"
        )
        console.print(
            "and maintenance, each a process of its own. Outside services are the sandbox: nothing leaves this machine."
        )
        for scene in SCENES:
            scene(stage)
        console.print("\n[bold green]All of it is so.[/bold green]")
        if keep:
            _keep(console, stage)


def _keep(console: Console, stage: Stage) -> None:
    for service in stage.machine.services:
        console.print(f"{service.name:<12}{service.kind:<10}{service.address}")
    console.print(f"tenant      {stage.tenant}")
    console.print(f"mails       {stage.machine.sandbox_url}/_sandbox/mails")
    console.print("In a second shell:")
    console.print(f"  export NOTIF_DATA_DIR={shlex.quote(str(stage.machine.data_dir))}; ./run notif ps")
    console.print("Ctrl-C ends it.")
    with suppress(KeyboardInterrupt):
        stage.machine.watch()
