"""The habits of this house that no linter knows. The direction of imports is import-linter's, in pyproject.toml."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import notif.errors
import notif.ports

ROOT = Path(__file__).parent.parent
ADRS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
SOURCES = {
    str(file.relative_to(ROOT)): ast.parse(file.read_text("utf-8"))
    for folder in ("notif", "workers")
    for file in sorted((ROOT / folder).rglob("*.py"))
}

VENDORS = {
    "alembic": ("notif/adapters/alembic.py", "notif/migrations"),
    "dramatiq": ("notif/adapters/dramatiq_worker.py", "workers"),
    "email_validator": ("notif/messages.py",),
    "httpcore": ("notif/adapters/deadline.py", "notif/adapters/http.py"),
    "jinja2": ("notif/adapters/jinja.py",),
    "psycopg": ("notif/adapters/postgres", "notif/adapters/embedded_postgres.py"),
    "pydantic": ("notif",),
    "pydantic_core": ("notif",),
    "pytest": ("notif/testing.py",),
    "redis": (
        "notif/adapters/redis_carrier.py",
        "notif/adapters/dramatiq_worker.py",
        "notif/adapters/embedded_valkey.py",
    ),
    "resend": ("notif/adapters/resend.py",),
    "rich": ("notif/cli", "notif/demo"),
    "sqlalchemy": ("notif/adapters/postgres", "notif/adapters/alembic.py"),
    "structlog": ("notif/bootstrap/log.py",),
    "typer": ("notif/cli",),
    "yaml": ("notif/config/load.py", "notif/cli/config.py"),
}
"""Who may import what; those without an adapter are ADR 0021's."""
CLOCK_READERS = {("notif/envelope.py", "new_job_id"): "ADR 0020"}
VENDOR_GLOBALS = {"notif/adapters/resend.py": "ADR 0004: the SDK keeps its settings in its module"}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported, inside functions and under TYPE_CHECKING too; from a package, its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def within(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def test_every_adapter_has_an_adr() -> None:
    heads = [re.findall(r"`(notif/adapters/[^`]+)`", adr.read_text("utf-8").split("\n## ")[0]) for adr in ADRS]
    named = tuple(place for head in heads for place in head)
    adapters = [path for path in SOURCES if path.startswith("notif/adapters/") and path != "notif/adapters/__init__.py"]
    assert adapters
    assert [path for path in adapters if not within(path, named)] == []
    assert [place for place in named if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("adr", ADRS, ids=lambda adr: adr.stem)
def test_an_adr_says_what_was_refused_and_what_is_not_covered(adr: Path) -> None:
    text = adr.read_text("utf-8")
    number = adr.name[:4]
    assert text.startswith(f"# {number} — ")
    assert re.search(r"^Status: (accepted|proposed|replaced by \d{4})", text, re.MULTILINE)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Refused", "Not covered"]
    assert text.count("\n") <= 60


def test_adrs_are_numbered_once_and_those_that_code_names_exist() -> None:
    numbers = [adr.name[:4] for adr in ADRS]
    assert sorted(set(numbers)) == numbers
    for path in SOURCES:
        assert set(re.findall(r"ADR (\d{4})", (ROOT / path).read_text("utf-8"))) <= set(numbers), path


def test_ports_are_small_protocols_and_the_values_they_speak_of_are_frozen() -> None:
    values = [vars(notif.ports)[name] for name in notif.ports.__all__]
    types = [value for value in values if isinstance(value, type) and value.__module__.startswith("notif.ports.")]
    assert len(types) > 20
    for value in types:
        if dataclasses.is_dataclass(value):
            assert value.__dataclass_params__.frozen, value  # type: ignore[attr-defined]
        else:
            assert getattr(value, "_is_protocol", False), value
            assert value.__doc__, value
            methods = [name for name in vars(value) if not name.startswith("_") and callable(getattr(value, name))]
            assert 1 <= len(methods) <= 6, value


@pytest.mark.parametrize(
    "module", ["envelope", "kinds", "verdict", "retry", "messages", "examples", "settings", "config.model"]
)
def test_values_are_frozen(module: str) -> None:
    made = vars(importlib.import_module(f"notif.{module}")).values()
    types = [each for each in made if isinstance(each, type) and each.__module__ == f"notif.{module}"]
    for each in types:
        if issubclass(each, BaseModel):
            assert each.model_config.get("frozen"), each
            assert each.model_config.get("extra") == "forbid", each
        if dataclasses.is_dataclass(each):
            assert each.__dataclass_params__.frozen, each  # type: ignore[attr-defined]


def test_errors_say_what_they_are_and_each_is_used() -> None:
    tree = (notif.errors.__doc__ or "").replace("·", " ").split()
    used = {
        node.id
        for path, source in SOURCES.items()
        if path != "notif/errors.py"
        for node in ast.walk(source)
        if isinstance(node, ast.Name)
    }
    bases = {base.__name__ for error in _errors() for base in error.__bases__}
    for error in _errors():
        assert error.__doc__, error
        assert error.__name__ in tree, f"{error.__name__} is missing in the tree at the top of notif/errors.py"
        assert error.__name__ in used | bases, f"{error.__name__} is raised nowhere"


def _errors() -> list[type[Exception]]:
    return [each for each in vars(notif.errors).values() if isinstance(each, type) and issubclass(each, Exception)]


def test_a_vendor_has_its_place_and_appears_nowhere_else() -> None:
    strangers = [
        f"{path}: {module}"
        for path, tree in SOURCES.items()
        for module in imports(tree)
        if (top := module.partition(".")[0]) not in sys.stdlib_module_names and top not in ("notif", "workers")
        if not within(path, VENDORS.get(top, ()))
    ]
    assert strangers == []


def test_time_and_chance_are_passed_in() -> None:
    """To the core and the use cases; bootstrap and adapters are where they come from."""
    outside = (
        "notif/adapters",
        "notif/bootstrap",
        "notif/sandbox",
        "notif/cli",
        "notif/demo",
        "notif/testing.py",
        "notif/migrations",
    )
    found = [
        (path, function)
        for path, tree in SOURCES.items()
        if path.startswith("notif/") and not within(path, outside)
        for function, call in _calls(tree)
        if re.fullmatch(
            r"time\.\w+|random\.\w+|secrets\.\w+|os\.urandom|(datetime\.)?(datetime|date)\.(now|utcnow|today)|(uuid\.)?uuid[14]",
            call,
        )
    ]
    assert set(found) == set(CLOCK_READERS)


def _calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef):
            yield from ((scope.name, ast.unparse(x.func)) for x in ast.walk(scope) if isinstance(x, ast.Call))


MUTATORS = re.compile(
    "append|appendleft|extend|insert|remove|pop|popitem|clear|update|setdefault|add|discard|sort|reverse|.*_update"
)
CONTAINERS = re.compile(r"(collections\.)?(dict|list|set|defaultdict|deque|Counter|OrderedDict)")
STATEFUL = re.compile(r"(threading\.)?(Lock|RLock|Event|Condition|Semaphore|local|Thread)")
CACHE = re.compile(r"(functools\.)?(lru_)?cache(\(.*\))?")


@pytest.mark.parametrize("path", SOURCES)
def test_no_module_keeps_state(path: str) -> None:
    tree = SOURCES[path]
    held = {name for statement in tree.body for name in _containers(statement)}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("notif")
        for alias in node.names
        if alias.name.isupper()
    }
    assert [name for name in _changed(tree) if name in held | imported] == []
    assert [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Global)] == []
    assert [ast.unparse(node) for node in tree.body if _makes_state(node)] == []
    assert [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_cached(node)] == []


def _is_cached(function: ast.FunctionDef) -> bool:
    """A cached function is a table that grows, for the whole process."""
    return any(CACHE.fullmatch(ast.unparse(decorator)) for decorator in function.decorator_list)


def _containers(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement at module level binds to something that can be changed."""
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        literal = isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
        called = isinstance(value, ast.Call) and bool(CONTAINERS.fullmatch(ast.unparse(value.func)))
        if literal or called:
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _changed(tree: ast.Module) -> Iterator[str]:
    """Names whose content is changed somewhere in a module."""
    for node in ast.walk(tree):
        target: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and MUTATORS.fullmatch(node.func.attr):
            target = node.func.value
        elif isinstance(node, ast.AugAssign):
            target = node.target
        if isinstance(target, ast.Name):
            yield target.id


def _makes_state(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Call) and bool(STATEFUL.fullmatch(ast.unparse(value.func)))


def test_only_where_a_vendor_leaves_no_choice_are_a_modules_names_set() -> None:
    """Setting another module's names is state for the whole process."""
    found = set()
    for path, tree in SOURCES.items():
        modules = {a.asname or a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
                found |= {path} if node.value.id in modules else set()
    assert found == set(VENDOR_GLOBALS)


def test_an_import_opens_nothing_and_starts_nothing() -> None:
    """All but the entry points of Dramatiq's command line, which are imported to be run."""
    names = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in SOURCES
        if not path.startswith("notif/migrations/")
        if path not in ("workers/transactional.py", "workers/marketing.py", "notif/__main__.py")
    ]
    code = (
        "import importlib, sys, threading\n"
        "def watch(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'subprocess.Popen', 'os.putenv'):\n"
        "        sys.exit(f'{event} {arguments}')\n"
        "sys.addaudithook(watch)\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", SOURCES)
def test_files_and_functions_are_short(path: str) -> None:
    assert (ROOT / path).read_text("utf-8").count("\n") <= 300
    for node in ast.walk(SOURCES[path]):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 40, node.name
