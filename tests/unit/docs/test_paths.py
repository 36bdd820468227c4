"""What the pages name is there: files, functions and classes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from config.process import CHECKOUT

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
_PATH = re.compile(r"`((?:app|workers|config|docs|migrations|tests)/[\w/.-]*\w/?)`(?: \(`(\w+(?:\.\w+)?)`\))?")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")


def test_every_file_that_a_page_names_is_there() -> None:
    missing = []
    for page in PAGES:
        for path, name in _PATH.findall(page.read_text(encoding="utf-8")):
            file = CHECKOUT / path
            if not file.exists():
                missing.append((page.name, path))
            elif name and not all(re.search(rf"\b{part}\b", file.read_text("utf-8")) for part in name.split(".")):
                missing.append((page.name, f"{path}: {name}"))
    assert missing == []


@cache
def anchors(page: Path) -> set[str]:
    """What links within a page may name: its headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_a_page_leads_somewhere() -> None:
    lost = []
    for page in PAGES:
        for link, anchor in re.findall(_LINK, page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                lost.append((page.name, f"{link}#{anchor}"))
    assert lost == []


def test_every_page_that_a_file_names_is_there() -> None:
    folders = ("app", "config", "deploy", "migrations", "tests", "workers")
    suffixes = {".py", ".toml", ".yaml", ".env", ".sql", ".target"}
    files = [path for folder in folders for path in (CHECKOUT / folder).rglob("*") if path.suffix in suffixes]
    named = {page for path in files for page in re.findall(r"\bdocs/[a-z][a-z/-]*\.md", path.read_text("utf-8"))}
    assert len(named) > 10
    assert [page for page in sorted(named) if not (CHECKOUT / page).exists()] == []
