"""The documentation as tests read it."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced code of a language, in order; of those in lists too."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", read(page), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, code in found]
