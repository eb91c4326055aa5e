"""docs/reference/configuration.md can't lie: it has every key and variable, none that isn't there, and the defaults."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from notif.config import Config
from notif.settings import Settings, secret_variables

PAGE = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*)\|$", re.MULTILINE)


def section_of(annotation: Any) -> type[BaseModel] | None:
    parts = [annotation, *get_args(annotation)]
    return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Path of every key, and its default as the page writes it."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        section = section_of(field.annotation)
        if section:
            between = {dict: ".NAME.", tuple: ".N."}.get(get_origin(field.annotation) or section, ".")
            yield from keys(section, path + between)
        elif field.is_required():
            yield path, "required"
        else:
            shown = model.model_construct().model_dump(mode="json", include={name})[name]
            yield path, f"{shown:g}" if isinstance(shown, float) else "none" if shown in (None, "") else str(shown)


def test_the_page_has_every_key_and_variable_with_its_default() -> None:
    written = [(name, default.strip()) for name, default, _ in ROW.findall(PAGE)]
    variables = [
        (str(info.alias), "none" if info.default is None else str(info.default))
        for info in Settings.model_fields.values()
    ]
    assert sorted(written) == sorted([*keys(Config), *variables])


def test_the_page_marks_every_secret() -> None:
    marked = {name for name, _, meaning in ROW.findall(PAGE) if meaning.strip().startswith("●")}
    assert marked == secret_variables()
