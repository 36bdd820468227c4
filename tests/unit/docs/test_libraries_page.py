"""docs/internals/decisions/libraries.md has every name of other libraries that their makers do not promise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module

from config.process import CHECKOUT

PAGE = (CHECKOUT / "docs" / "internals" / "decisions" / "libraries.md").read_text(encoding="utf-8")
NAMED = {word for quoted in re.findall(r"`([^`]+)`", PAGE) for word in re.findall(r"\w+", quoted)}
OVERRIDING = (
    "app.api.connection.http:BoundedHttp",
    "app.api.connection.websocket:BoundedWebSocket",
    "app.api.connection.processes:Processes",
    "workers.celery_host.program:WorkerProgram",
    "workers.celery_host.connection:ReconnectingConsumer",
    "workers.celery_host.connection:FastReconnectConnection",
    "workers.celery_host.fetch:BatchChannel",
    "workers.celery_host.fetch:PlacesQoS",
    "workers.celery_host.pool:TaskPool",
)
OWN = {"app", "workers", "config"}
DOCUMENTED = {"_exit", "_asdict"}
"""Private names that their makers document: of os and of named tuples."""


def test_the_page_has_what_our_classes_override() -> None:
    for path in OVERRIDING:
        module, _, name = path.partition(":")
        ours, *bases = getattr(import_module(module), name).__mro__
        strangers = [base for base in bases if base.__module__.partition(".")[0] not in {*OWN, "asyncio", "builtins"}]
        overridden = {each for each in vars(ours) for base in strangers if each in vars(base) and each[:2] != "__"}
        assert overridden, path
        assert overridden - NAMED == set(), path


def test_the_page_has_every_private_name_that_is_not_ours() -> None:
    ours, used = set(), set()
    for node in nodes():
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                ours.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                ours.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                ours.add(name)
            case ast.Attribute(attr=name) if re.match("_[^_]", name):
                used.add(name)
    assert used - ours - DOCUMENTED - NAMED == set()
    assert used - ours - DOCUMENTED


def nodes() -> Iterator[ast.AST]:
    for top in OWN:
        for path in (CHECKOUT / top).rglob("*.py"):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))
