"""What the scenes play on: a machine of real processes, and a narrator."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from rich.console import Console
from rich.markup import escape

from notif.bootstrap import App
from notif.bootstrap.machine import Machine
from notif.envelope import new_job_id
from notif.errors import ConfigurationError, NotifError
from notif.notifier import Notifier
from notif.ports import Tenant
from notif.sandbox import SandboxClient

T = TypeVar("T")
CONFIG = Path(__file__).parents[2] / "config" / "demo.yaml"
PATIENCE = 60.0
"""Seconds a scene waits for something before it says that it did not come."""


class SceneFailed(NotifError):
    """What a scene promised did not happen."""


@dataclass
class Stage:
    """One installation, one tenant, and a console that tells what happens."""

    machine: Machine
    app: App
    notifier: Notifier
    sandbox: SandboxClient
    console: Console
    tenant: UUID = field(default_factory=new_job_id)
    scene: int = 0

    def title(self, text: str) -> None:
        self.scene += 1
        self.console.print(f"\n[bold]{self.scene}. {escape(text)}[/bold]")

    def tell(self, text: str) -> None:
        self.console.print(f"   {escape(text)}")

    def wait(self, what: str, look: Callable[[], T]) -> T:
        """Until `look` answers something true; says what it waits for. Raises SceneFailed."""
        end = time.monotonic() + PATIENCE
        with self.console.status(f"   waiting: {escape(what)} …"):
            while not (found := look()):
                if time.monotonic() > end:
                    raise SceneFailed(f"the demo waited {PATIENCE:.0f} s in vain: {what}")
                time.sleep(0.02)
        return found

    def expect(self, fact: bool, text: str) -> None:
        """A fact that the scene claims. Raises SceneFailed."""
        if not fact:
            raise SceneFailed(f"not true: {text}")
        self.console.print(f"   [green]✓[/green] {escape(text)}")

    def mails_of(self, job_id: UUID) -> list[dict[str, Any]]:
        return [mail for mail in self.sandbox.mails() if mail["tags"].get("job") == str(job_id)]

    def state(self, job_id: UUID) -> str:
        return next((status.state for status in self.notifier.status(job_id)), "unknown")

    def way_of(self, job_id: UUID) -> None:
        """The job's moves, each with the milliseconds since the first."""
        (status,) = self.notifier.status(job_id)
        start = datetime.fromisoformat(status.history[0]["at"])
        for move in status.history:
            passed = (datetime.fromisoformat(move["at"]) - start).total_seconds() * 1000
            self.console.print(f"      {passed:>7,.0f} ms  [cyan]{move['state']:<10}[/cyan] {escape(move['note'])}")


@contextmanager
def opened(console: Console) -> Iterator[Stage]:
    """Start everything in a throw-away folder; stop it at the end. Nothing of our environment's services is touched."""
    if not CONFIG.exists():
        raise ConfigurationError("demo: runs in a copy of the repository, by `./run demo`")
    with console.status("   starting PostgreSQL, Valkey, the sandbox and every role …"):
        machine = Machine(environ={"NOTIF_CONFIG": str(CONFIG)}).start()
    try:
        app = App.from_settings(machine.operator_env)
        stage = Stage(machine, app, Notifier.from_settings(machine.env), SandboxClient(machine.sandbox_url), console)
        app.tenants.add(Tenant(stage.tenant, "Acme", "Europe/Berlin", "standard", app.settings.cell_id, active=True))
        yield stage
        app.close()
    finally:
        with console.status("   stopping …"):
            machine.stop()
