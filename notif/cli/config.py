"""`notif config` and `notif version`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import SecretStr

import notif
from notif.bootstrap.app import App
from notif.cli.environment import environment, opened
from notif.cli.output import Json, show, show_json
from notif.cli.usage import group
from notif.errors import ConfigurationError
from notif.settings import Settings


def add_to(app: typer.Typer) -> None:
    commands = group("The configuration.")
    commands.command("check")(check)
    commands.command("show")(show_)
    app.add_typer(commands, name="config")
    app.command()(version)


def check(
    file: Annotated[Path | None, typer.Argument(help="NOTIF_CONFIG if left out.", show_default=False)] = None,
) -> None:
    """Check all that a process checks when it boots: environment, file, models, templates, NOTIF_APP. Exit 2 if it is wrong."""
    app = _checked({"NOTIF_CONFIG": str(file)} if file else {})
    unread = [queue for queue in app.config.queues if queue not in app.handlers]
    if unread:
        show(f"no consumer is registered by NOTIF_APP for: {', '.join(unread)}")
    counts = f"{len(list(app.kinds))} kinds, {len(app.config.queue_names)} queues"
    show(f"{app.settings.config}: nothing is wrong ({counts})")


def _checked(named: dict[str, str]) -> App:
    """Raises ConfigurationError: of a wrong environment and of a wrong file all that can be known at once."""
    try:
        Settings.from_environment(os.environ)
    except ConfigurationError as error:
        alone = {name: os.environ[name] for name in ("NOTIF_CONFIG",) if name in os.environ}
        try:
            App.from_settings({**alone, **named})
        except ConfigurationError as of_the_file:
            raise ConfigurationError(f"{error}\n{of_the_file}") from error
        raise
    return App.from_settings({**environment(), **named})


def show_(as_json: Json = False) -> None:
    """Show what holds, defaults included. Secrets are never shown, only that they are set."""
    with opened() as app:
        found = {
            "environment": {str(info.alias): _shown(getattr(app.settings, name)) for name, info in _fields()},
            "configuration": app.config.model_dump(mode="json", by_alias=True),
        }
    if as_json:
        show_json(found)
    else:
        show(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())


def version() -> None:
    """Show the release."""
    show(f"notif {notif.__version__}")


def _fields() -> Any:
    return Settings.model_fields.items()


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    return "(set)" if isinstance(value, SecretStr) else str(value)
