"""Whatever the store reads or writes by an id, it looks for in the caller's project alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from config.settings import CHECKOUT

ROOMS = ("responses", "context")
"""The rooms of `app/store` whose rows belong to projects. Operators alone have ids of the other rooms."""
WITHOUT_PROJECT = {
    "end": "maintenance: those that an operator's filter, a batch or a deadline has found",
    "fail": "workers and maintenance: responses of all projects",
    "find": "workers and maintenance: responses of all projects",
    "find_ended": "responses that `flags` has found in the caller's project",
    "find_status": "workers: responses of all projects",
    "read": "the log of a response that `get` has found in the caller's project",
    "read_events": "maintenance merges logs of any project",
    "read_page": "the log of a response that `get` has found in the caller's project",
    "read_size": "the log of a response that `get` has found in the caller's project",
    "release": "workers: the responses that they have claimed",
    "sizes_of": "bulk actions: responses that an operator's filter has found",
    "yield_": "workers: the responses that they have claimed",
}
"""Functions that find rows by an id alone, and whose id that is. A `Past` has its project."""


def _functions() -> Iterator[tuple[str, set[str]]]:
    """The name and the parameters of each function that others call."""
    for room in ROOMS:
        for file in (CHECKOUT / "app" / "store" / room).glob("*.py"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
                    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                    yield node.name, {each.arg for each in given}


def test_a_function_that_takes_an_id_takes_the_project_or_says_why_not() -> None:
    by_id = {name: given for name, given in _functions() if any(each.endswith(("id", "ids")) for each in given)}
    assert {name for name, given in by_id.items() if not {"project", "past"} & given} == set(WITHOUT_PROJECT)
    assert len(by_id) > 2 * len(WITHOUT_PROJECT)
