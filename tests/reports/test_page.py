"""The page of field reports: every report of it has its test where the page says, and every test its row."""

import re

from tests.pages import ROOT, read

PAGE = read("docs/reference/field-reports.md")
ROWS = re.findall(r"^\| B(\d+) .* \| ([^|]*) \|$", PAGE, re.MULTILINE)
NAMED = re.compile(r"^def test_((?:b\d+_)+)", re.MULTILINE)


def reports(text: str) -> set[str]:
    return {number for names in NAMED.findall(text) for number in re.findall(r"b(\d+)_", names)}


def test_every_row_names_a_file_that_has_its_test() -> None:
    assert len(ROWS) == 57
    for number, where in ROWS:
        files = [name if "/" in name else f"tests/reports/{name}" for name in re.findall(r"`([\w/]+\.py)`", where)]
        assert number in set().union(*(reports((ROOT / file).read_text("utf-8")) for file in files)), f"B{number}"


def test_every_test_of_a_report_has_its_row() -> None:
    named = set().union(*(reports(file.read_text("utf-8")) for file in (ROOT / "tests").rglob("test_*.py")))
    assert named == {number for number, _ in ROWS}
