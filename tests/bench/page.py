"""docs/performance.md and docs/scaling.md: prose by hand, and between marks what `write` puts there.

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
from tests.bench import fair, gpu, placement, plots, restart, tables
from tests.bench.fleet import pages as fleet
from tests.bench.results import Results
from tests.bench.scale import MEASUREMENTS, PREFIX

DOCS = CHECKOUT / "docs"
PAGE = "performance.md"
SCALING = "scaling.md"
TITLES = {PAGE: "# Performance", SCALING: "# Scaling"}
IMAGES = "img"


def write(results: Path, docs: Path = DOCS) -> Iterator[Path]:
    """Puts every result of that folder into its page; yields the files that were written. Raises OSError."""
    found = {file.stem: Results.load(file) for file in sorted(results.glob("*.json"))}
    (docs / IMAGES).mkdir(parents=True, exist_ok=True)
    for page, parts in ((PAGE, _parts(found)), (SCALING, fleet.blocks(found))):
        blocks: dict[str, list[str]] = {}
        for name, lines, images in parts:
            blocks[name] = lines
            for image, svg in images.items():
                file = docs / IMAGES / f"{image}.svg"
                file.write_text(svg, encoding="utf-8")
                blocks[name] += ["", f"![{image}]({IMAGES}/{image}.svg)"]
                yield file
        if blocks:
            yield _fill(docs / page, blocks)


def _fill(page: Path, blocks: Mapping[str, list[str]]) -> Path:
    text = page.read_text(encoding="utf-8") if page.exists() else f"{TITLES[page.name]}\n"
    for name, lines in blocks.items():
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


def report(found: Mapping[str, Results]) -> Iterator[str]:
    """The same tables, for a terminal."""
    for _, lines, _ in chain(_parts(found), fleet.blocks(found)):
        yield from lines
        yield ""


def _parts(found: Mapping[str, Results]) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, lines and images of each block."""
    compared = {name: found[name] for name in ("run", "path") if name in found}
    if compared:
        yield "targets", tables.targets(compared), plots.reached(compared)
    for name, results in compared.items():
        yield name, _compared(results), plots.streaming(results)
    for name, results in found.items():
        if name.startswith(gpu.PREFIX):
            yield name, [*_compared(results), *(f"\n{line}." for line in results.about["left_out"])], {}
    plotted = {fair.NAME: fair.plots, fair.SIZES: fair.sizes.plots}
    for name in (restart.NAME, placement.NAME, fair.NAME, fair.SIZES):
        if name in found:
            images = plotted[name](found[name]) if name in plotted else {}
            yield name, [tables.about(found[name]), "", *tables.rows_of(found[name])], images
    for name, results in found.items():
        measurement = MEASUREMENTS.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
        if measurement is not None:
            yield name, [tables.about(results), "", *tables.rows_of(results)], measurement.plots(results)


def _compared(results: Results) -> list[str]:
    """The tables of a comparison, as far as they have rows."""
    lines = [tables.about(results)]
    for table in (
        tables.comparison(results),
        tables.posts(results),
        tables.arrivals(results),
        tables.costs(results),
        tables.rows_of(results),
    ):
        lines += ["", *table] if table else []
    return lines
