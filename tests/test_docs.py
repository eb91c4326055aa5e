"""The documentation doesn't lie: links lead somewhere, tables are complete, commands exist."""

import inspect
import re
from pathlib import Path

import pytest

import notif.errors
import notif.verdict
from notif.adapters.resend import MEANINGS
from notif.cli.main import COMMANDS, run
from tests.pages import PAGES, ROOT, blocks, read

TABLES = read("notif/migrations/sql/0001/10_tables.sql")
CLI = "docs/reference/cli.md"


def anchors(page: str) -> set[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", read(page), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", read(page)):
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(str(found.resolve().relative_to(ROOT))), target


@pytest.mark.parametrize("page", PAGES)
def test_every_path_of_the_repository_is_there(page: str) -> None:
    for path in re.findall(r"`((?:notif|workers|tests|docs|config|benchmarks)/[\w./-]+)`", read(page)):
        if not path.startswith("config/templates/password_reset"):  # the guide's own example
            assert (ROOT / path).exists(), path


def test_every_page_can_be_found_from_the_index() -> None:
    index = {str((ROOT / "docs" / target).resolve()) for target in re.findall(r"\]\(([^)#]+)", read("docs/README.md"))}
    pages = {str(ROOT / page) for page in PAGES if "/adr/" not in page and page != "docs/README.md"}
    assert pages <= index


def test_the_first_screen_of_the_readme_has_both_commands() -> None:
    screen = "\n".join(read("README.md").splitlines()[:24])
    assert "./run demo" in screen
    assert "./run test" in screen
    assert "Notifier.from_settings()" in screen
    example = read("README.md").split("```python")[1]
    assert "docs/how-to/publish.md" in example.split("## ")[0]


def test_the_changelog_names_every_command() -> None:
    (listed,) = re.findall(r"The command line: `notif ([^`]*)`", read("CHANGELOG.md"))
    assert set(listed.split()) == set(COMMANDS)


def options_of(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert run([*command.split(), "--help"]) == 0
    return set(re.findall(r"(?<=[ │])--[a-z-]+", capsys.readouterr().out)) - {"--help", "--debug"}


ROWS = re.findall(r"^\| `notif ([a-z-]+(?: (?:add|list|set|deactivate|show|replay|discard|roles|upgrade|check))?)([^`]*)` \|",
                  read(CLI), re.MULTILINE)  # fmt: skip


def test_the_page_of_the_command_line_has_every_command() -> None:
    assert {command.split()[0] for command, _ in ROWS} == set(COMMANDS)


@pytest.mark.parametrize(("command", "synopsis"), ROWS)
def test_the_page_of_the_command_line_has_every_option(
    command: str, synopsis: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(re.findall(r"--[a-z-]+", synopsis)) == options_of(command, capsys)


def used() -> set[tuple[str, str]]:
    """Every `notif …` in the pages' code, as command and options."""
    found = set()
    for page in PAGES:
        text = read(page)
        code = [*re.findall(r"`(notif [^`]+)`", text), *re.findall(r"^(notif .*(?:\\\n.*)?)$", text, re.MULTILINE)]
        for line in code:
            words = line.split()[1:]
            if words and words[0] in COMMANDS:
                options = re.findall(r"(?<=[ \[])--[a-z-]+", line)
                groups = ("tenants", "dead-letters", "db", "config")
                found.add((" ".join(words[:2] if words[0] in groups else words[:1]), " ".join(options)))
            else:
                assert re.match(r"notif[ -](up ps env|COMMAND|is|\S*/|shows|without)", line), f"{page}: {line}"
    return found


@pytest.mark.parametrize(("command", "options"), sorted(used()))
def test_commands_in_the_pages_exist(command: str, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(options.split()) <= options_of(command, capsys)


def test_the_states_in_the_drawing_are_those_of_the_table() -> None:
    (states,) = re.findall(r"CHECK \(state IN \(('scheduled'.*?)\)\)", TABLES)
    (verdicts,) = re.findall(r"CHECK \(verdict IN \((.*?)\)\)", TABLES)
    living, ends = (set(re.findall(r"'(\w+)'", names)) for names in (states, verdicts))
    page = read("docs/architecture.md")
    section = page.split("## One row, one number, one timer")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == living
    drawn = set(re.findall(r"^    (\w+|\[\*\]) --> (\w+):", section, re.MULTILINE))
    names = {name for pair in drawn for name in pair} - {"[*]"}
    assert names == (living - {"parked"}) | {"delivered", "dead"}
    assert ends == set(re.findall(r"`(\w+)`", section.split("A row ends as")[1].split(";")[0])) - {"core"}


def test_errors_verdicts_and_answers_are_all_in_their_tables() -> None:
    page = read("docs/reference/errors-and-verdicts.md")
    raised = {
        name
        for name, value in vars(notif.errors).items()
        if inspect.isclass(value) and value.__module__ == "notif.errors"
    }
    verdicts = {each.__name__ for each in notif.verdict.Verdict.__args__}
    assert raised <= set(re.findall(r"`(\w+)`", page))
    assert verdicts == set(re.findall(r"^\| `(\w+)\(", page, re.MULTILINE))
    rows = [row for row in page.split("## What becomes of Resend's answers")[1].splitlines() if row.startswith("| ")]
    for status, name in MEANINGS:
        own = [row.split("|")[1] for row in rows if re.search(rf"\b{status}\b|{status // 100}xx", row.split("|")[1])]
        assert any(f"`{name}`" in row or re.search(rf"{status} \(any name\)|5xx", row) for row in own) or (
            status in (404, 405, 451) and own
        ), (status, name)


def test_what_the_pages_say_of_redis_is_what_the_adapters_use() -> None:
    source = read("notif/adapters/redis_carrier.py") + read("notif/adapters/dramatiq_worker.py")
    for key in (".msgs", ".bell", "epoch", "__acks__", "__heartbeats__", "reaped", "installation"):
        assert key in source
        assert key in read("docs/architecture.md")


@pytest.mark.parametrize("page", PAGES)
def test_python_in_the_pages_is_python(page: str) -> None:
    for code in blocks(page, "python"):
        compile(code, page, "exec")


def test_the_words_are_the_glossarys() -> None:
    """One word a thing: those that other systems use for ours are not ours."""
    for page in PAGES:
        if "/adr/" in page or page in ("docs/glossary.md",):
            continue
        found = re.search(
            r"\b(dead[- ]letter queue|DLQ|priority|message queue|topic|subscriber|recipient list)\b", read(page)
        )
        assert found is None, f"{page}: {found}"


def test_no_path_of_a_machine_and_no_registry_stands_in_the_repository() -> None:
    left_out = {".git", ".venv", ".notif", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    found = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.is_file() and not left_out & set(path.relative_to(ROOT).parts) and path != Path(__file__)
        if re.search(
            rb"/work/(main|shared)|/root/\.|pypi\.org|pythonhosted|registry\.npmjs|ghcr\.io", path.read_bytes()
        )
    ]
    assert found == []
    assert Path(ROOT / "LICENSE").exists()
