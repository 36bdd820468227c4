"""docs/operator.md has every reason and every problem of the code."""

from __future__ import annotations

import re

import pytest

from app.operations.explanation import Reason
from app.operations.problems import ProblemCode
from config.process import CHECKOUT

PAGE = (CHECKOUT / "docs" / "operator.md").read_text(encoding="utf-8")


def codes(section: str) -> list[str]:
    """The names in the first column of a section's table."""
    table = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [name for line in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]


@pytest.mark.parametrize(("section", "kind"), [("What `why` says", Reason), ("What `status` finds", ProblemCode)])
def test_the_page_has_every_code_in_the_order_of_the_code(section: str, kind: type[Reason] | type[ProblemCode]) -> None:
    assert codes(section) == [each.value for each in kind]
