"""The line feeds that a chat template writes around an answer belong to no item."""

from __future__ import annotations

import pytest

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from workers.formats.answer import merge_deltas
from workers.formats.chat.trim import Trim


def call(name: str, arguments: str) -> list[Delta]:
    return [CallStart(name), CallArguments(arguments)]


TRIMMED: list[tuple[list[Delta], list[Delta]]] = [
    ([Reasoning("\nI see.\n"), Text("\n\nYes.\n")], [Reasoning("I see."), Text("Yes.\n")]),
    ([Reasoning("\n"), Reasoning("\na\n"), Reasoning("\nb\n")], [Reasoning("a\n\nb")]),
    ([Reasoning("\n\n"), Text("\n\n"), Text("x")], [Text("x")]),
    ([Reasoning("a"), Text("\n"), Text("\n"), *call("f", "{}")], [Reasoning("a"), *call("f", "{}")]),
    ([*call("f", "{}"), Text("\n"), *call("g", "{}"), Text("\n")], [*call("f", "{}"), *call("g", "{}")]),
    ([Text("  "), Text("x ")], [Text("  x ")]),
    ([Text("\n\n x")], [Text("\n\n x")]),
    ([Text(" \n")], [Text(" \n")]),
    ([Text("Look.\n"), *call("f", "{}")], [Text("Look.\n"), *call("f", "{}")]),
    ([Text("\n"), *call("f", "{}")], call("f", "{}")),
    ([Reasoning("a"), Text("  b")], [Reasoning("a"), Text("  b")]),
    ([Reasoning("a"), Text("\n")], [Reasoning("a")]),
]


@pytest.mark.parametrize(("said", "expected"), TRIMMED)
def test_a_template_s_line_feeds_belong_to_no_delta(said: list[Delta], expected: list[Delta]) -> None:
    trim = Trim()
    assert merge_deltas([*trim.feed(said), *trim.flush()]) == tuple(expected)
