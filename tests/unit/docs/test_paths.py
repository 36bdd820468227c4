"""What the pages name is there: files, functions and classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PATH = re.compile(r"`((?:app|workers|config|migrations|tests)/[\w/.-]*\w/?)`(?: \(`(\w+(?:\.\w+)?)`\))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    missing = []
    for path, name in _PATH.findall(page.read_text(encoding="utf-8")):
        if not (ROOT / path).exists():
            missing.append(path)
        elif name and not all(re.search(rf"\b{part}\b", (ROOT / path).read_text("utf-8")) for part in name.split(".")):
            missing.append(f"{path}: {name}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
