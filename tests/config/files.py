"""A small right configuration, and what is said of one that isn't."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from notif.config import Config, load_config
from notif.errors import ConfigurationError

BASE = """
providers: {resend: {}}
channels: {email: {provider: resend, from: Acme <hello@acme.test>}}
queues: {loyalty: {consumer: loyalty.points}}
kinds:
  email.message: {lane: transactional, channels: [email]}
"""
KIND = {"lane": "transactional", "channels": ["email"]}
RULE = {"name": "email", "watch": ["notif.email.transactional"], "pause": ["notif.email.marketing"]}
MAIL = {"model": "notif.examples.OrderShipped", "template": "order_shipped", "to": "email"}


def load(folder: Path, text: str) -> Config:
    path = folder / "notif.yaml"
    path.write_text(text)
    return load_config(path, {"resend"})


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


def refused(folder: Path, change: dict[str, Any] | str) -> list[str]:
    """The lines of the error, each without the file's name, which every line must begin with."""
    text = change if isinstance(change, str) else yaml.safe_dump(merged(yaml.safe_load(BASE), change))
    with pytest.raises(ConfigurationError) as caught:
        load(folder, text)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{folder / 'notif.yaml'}") for line in lines)
    return [line.removeprefix(f"{folder / 'notif.yaml'}").removeprefix(": ") for line in lines]
