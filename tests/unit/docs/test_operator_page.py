"""docs/operator.md has every reason and every problem of the code, every route and every command."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from fastapi.routing import APIRoute
from typer.main import get_group

from app.api.routes.operator import ROUTERS
from app.cli import _LAZY_COMMANDS
from app.local.commands.responses import group
from app.operations.conditions import CONDITIONS, Grade
from app.operations.explanation import Reason
from config.process import CHECKOUT

PAGE = (CHECKOUT / "docs" / "operator.md").read_text(encoding="utf-8")


def codes(section: str) -> list[str]:
    """The names in the first column of a section's table."""
    table = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [name for line in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("What `why` says", Reason),
        ("What `status` finds", [code for code, test in CONDITIONS.items() if test.grade is Grade.WRONG]),
        ("What needs attention", [code for code, test in CONDITIONS.items() if test.grade is Grade.ATTENTION]),
    ],
)
def test_the_page_has_every_code_in_the_order_of_the_code(section: str, names: Iterable[str]) -> None:
    assert codes(section) == list(names)


def test_the_page_has_every_route() -> None:
    written = re.findall(r"^\| `([A-Z]+) (/v1/operator/[^`]*)` \|", PAGE, re.MULTILINE)
    served = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    routes = {(method, route.path) for route in served for method in route.methods or ()}
    assert len(set(written)) == len(written)
    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in written} == {
        (method, re.sub(r"\{[\w:]+\}", "{}", path)) for method, path in routes if method != "HEAD"
    }


def test_the_page_has_every_command_and_every_option_of_a_filter() -> None:
    responses = get_group(group.commands)
    names = [*_LAZY_COMMANDS, *(f"responses {each}" for each in responses.commands)]
    pages = PAGE + (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [name for name in names if not re.search(rf"longhaul {name}\b|`{name.split()[-1]}\b", pages)] == []
    options = {option for each in responses.commands["list"].params for option in each.opts}
    assert {each for each in options if f"`{each}" not in PAGE} == set()
