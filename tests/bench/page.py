"""performance.md and scaling.md in docs/internals: prose by hand, and between marks what `write` puts there.

<!-- bench:NAME -->
...
<!-- /bench:NAME -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from config.settings import CHECKOUT
from tests.bench import batches, fair, placement, tables
from tests.bench.fleet import pages as fleet
from tests.bench.results import Results

Block = tuple[str, list[str]]
"""The name of the marks, and the lines between them."""

DOCS = CHECKOUT / "docs" / "internals"
PAGE = "performance.md"
SCALING = "scaling.md"


def write(results: Path, docs: Path = DOCS) -> Iterator[Path]:
    """Puts every result of that folder into its page; yields the files that were written. Raises OSError."""
    found = {file.stem: Results.load(file) for file in sorted(results.glob("*.json"))}
    for page, blocks in ((docs / PAGE, list(_blocks(found))), (docs / SCALING, list(fleet.blocks(found)))):
        text = page.read_text(encoding="utf-8")
        for name, lines in blocks:
            text = filled(text, name, lines)
        page.write_text(text, encoding="utf-8")
        yield page


def filled(text: str, name: str, lines: list[str]) -> str:
    """`text` with these lines between the marks of that name, which are added at the end where there are none."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    block = "\n".join((begin, *lines, end))
    if begin not in text:
        return f"{text.rstrip()}\n\n{block}\n"
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block, text, flags=re.DOTALL)


def report(found: Mapping[str, Results]) -> Iterator[str]:
    """The same tables, for a terminal."""
    for _, lines in chain(_blocks(found), fleet.blocks(found)):
        yield from lines
        yield ""


def _blocks(found: Mapping[str, Results]) -> Iterator[Block]:
    compared = {name: found[name] for name in ("run", "path") if name in found}
    if compared:
        yield "targets", tables.targets(compared)
    for name, results in compared.items():
        yield name, tables.compared(results)
    for name in (placement.NAME, batches.NAME, batches.PACED, fair.NAME, fair.SIZES):
        if name in found:
            yield name, [tables.about(found[name]), "", *tables.rows_of(found[name])]
