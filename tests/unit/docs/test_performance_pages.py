"""What the pages for users say was measured is in the tables that the bench writes."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.test_paths import ROOT


@pytest.mark.parametrize("name", ["performance.md", "scaling.md"])
def test_every_measured_row_is_one_of_the_bench(name: str) -> None:
    shown = (ROOT / "docs" / name).read_text(encoding="utf-8")
    written = (ROOT / "docs" / "internals" / name).read_text(encoding="utf-8")
    rows = [
        row for part in re.findall("<!-- measured -->(.*?)<!-- /measured -->", shown, re.DOTALL) for row in cells(part)
    ]
    assert len(rows) > 3
    measured = [
        set(row) for block in re.findall("<!-- bench:.*?<!-- /bench:", written, re.DOTALL) for row in cells(block)
    ]
    assert [row for row in rows if not any(set(row) <= each for each in measured)] == []


def cells(text: str) -> list[list[str]]:
    """The rows of a text's tables; those of lines between head and body have no letters."""
    return [re.split(r" ?\| ?", line.strip("| ")) for line in text.splitlines() if re.match(r"\| \w", line)]
