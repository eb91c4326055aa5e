"""From the YAML file to a checked Config. Whatever is wrong is said in one line each, all lines at once."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from notif.config.checks import kind_problems, problems
from notif.config.model import Config
from notif.errors import ConfigurationError, nearest

_SENTENCES = {
    "missing": "is missing",
    "invalid_key": "a key must be text; write it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; write it in quotes",
    "tuple_type": "must be a list, written [one, two]",
    "dict_type": "must be a section of keys and values",
    "model_type": "must be a section of keys and values",
}


def load_config(path: Path, known_providers: Collection[str]) -> Config:
    """`checked_config`, of which nothing may be wrong. Raises ConfigurationError, one line per problem."""
    config, wrong = checked_config(path, known_providers)
    if wrong:
        raise refused(path, wrong)
    return config


def checked_config(path: Path, known_providers: Collection[str]) -> tuple[Config, list[str]]:
    """Read and check; `templates` becomes absolute, relative to the file. Reads no template and imports no model.

    `known_providers` are those notif has an adapter for. Answers what is wrong between sections too, a line per problem that
    begins with the path of its field; the Config is without the kinds that are. Raises ConfigurationError, as `refused` makes
    it, if the file can't be read or a field by itself is wrong.
    """
    content = _read(path)
    if content is None:
        raise ConfigurationError(f"{path}: is empty")
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise refused(path, (_sentence(detail) for detail in error.errors())) from None
    sound = {name: kind for name, kind in config.kinds.items() if not any(kind_problems(config, name))}
    update = {"templates": (path.parent / config.templates).resolve(), "kinds": sound}
    return config.model_copy(update=update), list(problems(config, known_providers))


def refused(path: Path, sentences: Iterable[str]) -> ConfigurationError:
    """One line per problem of this file, each beginning with its name."""
    return ConfigurationError("\n".join(f"{path}: {sentence}" for sentence in sentences))


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice: YAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> Any:
    try:
        return yaml.load(path.read_bytes(), _Loader)  # noqa: S506 -- it is a SafeLoader
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file; NOTIF_CONFIG names another") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{path}{where}: {error.problem or 'is no YAML'}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None


def _sentence(detail: ErrorDetails) -> str:
    """`kinds.order.shipped.lane: 'transactinal' is not allowed; did you mean 'transactional'?`"""
    loc, kind, given = detail["loc"], detail["type"], detail["input"]
    at = ".".join(str(part) for part in loc if part != "[key]") or "the file"
    if kind == "extra_forbidden":
        return f"{at}: no such key; {nearest(str(loc[-1]), _keys(Config, loc[:-1]))}"
    if kind in {"enum", "literal_error"}:
        choices = re.findall(r"'([^']+)'", detail["ctx"]["expected"])
        return f"{at}: {given!r} is not allowed; {nearest(str(given), choices)}"
    text = _SENTENCES.get(kind) or detail["msg"].replace("Input should be", "must be")
    scalar = isinstance(given, str | int | float) and kind not in {"missing", "wrong", "invalid_key"}
    return f"{at}: {text}{f', not {given!r}' if scalar else ''}"


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys there are in the section at `loc`."""
    for part in loc:
        field = next((f for name, f in model.model_fields.items() if part == (f.alias or name)), None)
        # A part that is no field is a name in a table, or a number in a list: it stays with the same section.
        model = _section(field.annotation) if field else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _section(annotation: Any) -> type[BaseModel]:
    """The section behind `dict[Name, Section]`, `tuple[Section, ...]` or the section itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(arg for arg in get_args(annotation) if isinstance(arg, type) and issubclass(arg, BaseModel))
