"""What the pages name is there: files, functions and classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PATH = re.compile(r"`((?:app|workers|config|docs|migrations|tests)/[\w/.-]*\w/?)`(?: \(`(\w+(?:\.\w+)?)`\))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    missing = []
    for path, name in _PATH.findall(page.read_text(encoding="utf-8")):
        if not (ROOT / path).exists():
            missing.append(path)
        elif name and not all(re.search(rf"\b{part}\b", (ROOT / path).read_text("utf-8")) for part in name.split(".")):
            missing.append(f"{path}: {name}")
    assert missing == []


def anchors(page: Path) -> set[str]:
    """What links within a page may name: its headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(f"{link}#{anchor}")
    assert lost == []


def test_every_page_that_a_file_names_is_there() -> None:
    folders = ("app", "config", "deploy", "migrations", "tests", "workers")
    suffixes = {".py", ".toml", ".yaml", ".env", ".sql", ".target"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    named = {page for path in files for page in re.findall(r"\bdocs/[a-z][a-z/-]*\.md", path.read_text("utf-8"))}
    assert len(named) > 10
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []
