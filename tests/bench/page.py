"""docs/internals/performance.md: prose by hand, and between marks what `write` puts there.

<!-- bench:NAME -->
...
<!-- /bench:NAME -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from config.settings import CHECKOUT
from tests.bench import tables
from tests.bench.results import Results

Block = tuple[str, list[str]]
"""The name of the marks, and the lines between them."""

DOCS = CHECKOUT / "docs" / "internals"
PAGE = "performance.md"


def write(results: Path, docs: Path = DOCS) -> Path:
    """Puts every result of that folder into the page, and returns the page. Raises OSError."""
    page = docs / PAGE
    text = page.read_text(encoding="utf-8")
    for name, lines in blocks({file.stem: Results.load(file) for file in results.glob("*.json")}):
        text = filled(text, name, lines)
    page.write_text(text, encoding="utf-8")
    return page


def filled(text: str, name: str, lines: list[str]) -> str:
    """`text` with these lines between the marks of that name, which are added at the end where there are none."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    block = "\n".join((begin, *lines, end))
    if begin not in text:
        return f"{text.rstrip()}\n\n{block}\n"
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block, text, flags=re.DOTALL)


def blocks(found: Mapping[str, Results]) -> Iterator[Block]:
    compared = {name: found[name] for name in ("run", "path") if name in found}
    if compared:
        yield "targets", tables.targets(compared)
    for name, results in compared.items():
        yield name, tables.compared(results)
