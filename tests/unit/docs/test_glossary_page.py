"""The glossary has one definition for each word."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "internals" / "glossary.md").read_text(encoding="utf-8")


def defined_words(page: str) -> list[str]:
    """The words in the first column of the page's tables, without the stars."""
    cells = re.findall(r"^\| ([^|]+?)(?: \*)? \| (?!means \|)", page, re.MULTILINE)
    return [word.casefold() for cell in cells for word in cell.split(", ")]


def test_no_word_of_the_glossary_has_two_definitions() -> None:
    counts = Counter(defined_words(PAGE))
    assert len(counts) > 50
    assert [word for word, count in counts.items() if count > 1] == []


def test_a_word_that_is_defined_twice_is_noticed() -> None:
    page = "| word | means |\n|---|---|\n| log * | all chunks |\n| claim, Log | a file |\n"
    assert Counter(defined_words(page))["log"] == 2
