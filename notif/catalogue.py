"""The kinds of `config/notif.yaml`, with their models imported and their templates checked: at boot, or not at all."""

import importlib
import pkgutil
import sys

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from notif.compose import variable_names
from notif.config import Config, KindConfig
from notif.errors import ConfigurationError, nearest
from notif.kinds import Kind, Kinds
from notif.messages import EmailMessage
from notif.ports import RendererPort


def build_kinds(config: Config, renderer: RendererPort) -> Kinds:
    """Import every model, check every template against its model.

    Raises ConfigurationError, one line per kind that can't be, each naming the field.
    """
    kinds: list[Kind] = []
    wrong: list[str] = []
    for name, entry in config.kinds.items():
        try:
            kinds.append(_kind(config, name, entry, renderer))
        except ConfigurationError as error:
            wrong.append(f"kinds.{name}.{error}")
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return Kinds(kinds)


def import_model(path: str) -> type[BaseModel]:
    """The pydantic model at a dotted path. Raises ConfigurationError beginning with `model:`."""
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigurationError(f"model: {_why(module_name, error)}") from error
    models = [each for each, value in vars(module).items() if _is_model(value)]
    if not hasattr(module, name):
        raise ConfigurationError(f"model: module {module_name!r} has no {name!r}; {nearest(name, models)}")
    model = getattr(module, name)
    if not _is_model(model):
        raise ConfigurationError(f"model: {path!r} is no pydantic model; {nearest(name, models)}")
    return model  # type: ignore[no-any-return]


def _is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel


def _why(module: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if not missing or not f"{module}.".startswith(f"{missing}."):
        return f"module {module!r} can't be imported: {type(error).__name__}: {error}"
    parent = missing.rpartition(".")[0]
    if parent:
        siblings = pkgutil.iter_modules(sys.modules[parent].__path__, f"{parent}.")
        return f"no module {missing!r}; {nearest(missing, (sibling.name for sibling in siblings))}"
    return f"no module {missing!r}; it must be installed, or lie in a folder of PYTHONPATH"


def _kind(config: Config, name: str, entry: KindConfig, renderer: RendererPort) -> Kind:
    model = import_model(entry.model)
    sender = None
    if entry.template is not None:
        to = entry.to or "to"
        names = variable_names(model)
        if to not in names:
            raise ConfigurationError(f"to: {entry.model} has no field {to!r}; {nearest(to, names)}")
        try:
            renderer.check(entry.template, names)
        except ConfigurationError as error:
            raise ConfigurationError(f"template: {error}") from error
        sender = entry.sender or next(filter(None, (config.channels[each].sender for each in entry.channels)), None)
    elif entry.channels and not issubclass(model, EmailMessage):
        raise ConfigurationError(
            f"template: is missing; {entry.model} is no notif.messages.EmailMessage, so a message must be made of it"
        )
    try:
        return Kind(
            name=name,
            lane=entry.lane,
            model=model,
            channels=entry.channels,
            queues=entry.queues,
            template=entry.template,
            to=entry.to or "to",
            sender=sender,
            max_age=entry.max_age,
            fence_ttl=entry.fence_ttl or config.retention.fence,
            max_runtime=entry.max_runtime,
            resend_unknown=entry.on_unknown == "resend",
        )
    except PydanticUserError as error:  # a field of a type that has no JSON schema, so the data can't travel as JSON
        raise ConfigurationError(f"model: {entry.model} can't be described: {error.message}") from error
