"""Templates by Jinja2 (ADR 0008): a folder per template with `subject.txt`, `body.html`, `body.txt`."""

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, Template, TemplateError, TemplateNotFound, meta, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from notif.errors import ConfigurationError, InvalidEnvelope, nearest

_SUBJECT = "subject.txt"
_PARTS = {"subject": _SUBJECT, "html": "body.html", "text": "body.txt"}


class JinjaRenderer:
    """Renders in a sandbox; a variable that isn't there is an error, and only `.html` files are escaped.

    Files are read once and kept: a changed template needs a restart, as changed code does.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, dict[str, str]] = {}
        self._environment = ImmutableSandboxedEnvironment(
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            autoescape=lambda name: name is not None and name.endswith(".html"),
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def check(self, template: str, fields: Iterable[str]) -> None:
        """At boot: the folder is there, its files compile, and every variable is one of `fields`.

        Raises ConfigurationError.
        """
        known = set(fields)
        for file in self._files(template).values():
            try:
                unknown = self._variables(file) - known
            except TemplateNotFound as error:
                raise ConfigurationError(f"{file} refers to {error.name!r}, which isn't there") from error
            except TemplateSyntaxError as error:
                raise ConfigurationError(f"{error.name or file}, line {error.lineno}: {error.message}") from error
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{file} can't be read: {error}") from error
            if unknown:
                name = min(unknown)
                raise ConfigurationError(
                    f"{file} uses {name!r}, which is no field of the model; {nearest(name, known)}"
                )

    def render(self, template: str, variables: Mapping[str, Any]) -> dict[str, str]:
        """Keys subject (always one line), html, text: those whose file exists.

        Raises InvalidEnvelope naming template, file, line and what was wrong; ConfigurationError if it isn't there.
        """
        parts = {part: self._rendered(file, variables) for part, file in self._files(template).items()}
        # A line break in a subject starts a new header: from a variable it becomes a blank, like any run of them.
        parts["subject"] = " ".join(parts["subject"].split())
        if not parts["subject"]:
            raise InvalidEnvelope(f"template {template}/{_SUBJECT}: the subject came out empty")
        return parts

    def _files(self, template: str) -> dict[str, str]:
        """Part → name of its file, for the files there are; looked up once."""
        if template not in self._found:
            self._found[template] = self._look_up(template)
        return self._found[template]

    def _look_up(self, template: str) -> dict[str, str]:
        there = {entry.name for entry in self._folder.iterdir() if entry.is_dir()} if self._folder.is_dir() else set()
        if template not in there:
            raise ConfigurationError(f"{template!r} is no folder under {self._folder}; {nearest(template, there)}")
        files = {part: name for part, name in _PARTS.items() if (self._folder / template / name).is_file()}
        if "subject" not in files:
            raise ConfigurationError(f"{template}/{_SUBJECT} is missing")
        if len(files) == 1:
            raise ConfigurationError(f"{template} has no body; write body.html, body.txt or both")
        return {part: f"{template}/{name}" for part, name in files.items()}

    def _variables(self, file: str) -> set[str]:
        """What `file`, and every file it includes, extends or imports by name, takes from outside."""
        tree = self._compiled(file)
        wanted = meta.find_undeclared_variables(tree)
        # A layout may use what the page that extends it has set.
        provided = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
        todo, done = _references(tree), {file}
        while todo:
            name = todo.pop()
            done.add(name)
            tree = self._compiled(name)
            wanted |= meta.find_undeclared_variables(tree) - provided
            todo |= _references(tree) - done
        return wanted - self._environment.globals.keys()

    def _compiled(self, name: str) -> nodes.Template:
        """Its tree; compiling it too says at boot what would fail at the first render."""
        self._environment.get_template(name)
        return self._environment.parse(self._source(name), name)

    def _source(self, name: str) -> str:
        assert self._environment.loader is not None
        return self._environment.loader.get_source(self._environment, name)[0]

    def _rendered(self, file: str, variables: Mapping[str, Any]) -> str:
        template = self._environment.get_template(file)
        try:
            return template.render(variables)
        except TemplateError as error:
            raise InvalidEnvelope(f"template {_place(template, error)}: {error.message}") from error
        except Exception as error:
            # Only its type: the text of a ValueError holds the value, which may be personal.
            raise InvalidEnvelope(f"template {_place(template, error)}: {type(error).__name__}") from error


def _references(tree: nodes.Template) -> set[str]:
    """Other files it names; one that is named by a variable shows only when it is rendered."""
    return {name for name in meta.find_referenced_templates(tree) if name}


def _place(template: Template, error: Exception) -> str:
    """`folder/file, line n`; Jinja2 puts the template's own lines into the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == template.filename]
    return f"{template.name}, line {lines[-1]}" if lines else str(template.name)
