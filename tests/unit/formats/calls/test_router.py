"""Calls are routed by name, and custom tools' inputs are read from JSON."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.events.deltas import (
    CallArguments,
    CallCut,
    CallStart,
    CustomInput,
    CustomStart,
    Delta,
    Reasoning,
    Text,
)
from workers.formats.answer import merge_deltas
from workers.formats.calls.router import CallableTools, CallRouter
from workers.formats.calls.string_argument import StringArgumentReader


def read(arguments: str, cuts: list[int]) -> str:
    reader, places = StringArgumentReader(), [0, *sorted(cuts), len(arguments)]
    said = [reader.feed(arguments[start:stop]) for start, stop in pairwise(places)]
    return "".join(said) + reader.flush()


@given(st.text(max_size=20), st.booleans(), st.sampled_from([None, 1]), st.data())
def test_a_custom_tool_s_input_comes_out_as_written(
    text: str, ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    text = text.encode(errors="replace").decode()
    written = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)
    assert read(written, data.draw(st.lists(st.integers(0, len(written)), max_size=6))) == text


@given(st.text(max_size=20), st.data())
def test_a_cut_input_is_the_beginning_of_the_whole(text: str, data: st.DataObject) -> None:
    text = text.encode(errors="replace").decode()
    written = json.dumps({"input": text})
    assert text.startswith(read(written[: data.draw(st.integers(0, len(written)))], []).rstrip("\ufffd"))


@pytest.mark.parametrize(
    "arguments", ['{"code": "x"}', "just text", '["input"]', '{"input": 5}', '{"input" : {"a":1}}']
)
def test_arguments_of_another_form_are_the_input_unchanged(arguments: str) -> None:
    assert read(arguments, list(range(len(arguments)))) == arguments


@pytest.mark.parametrize("before", ['"language": "python", ', '"x": {"input": 5}, ', '"x": "\\"input\\": \\"", '])
def test_the_input_is_found_behind_other_keys(before: str) -> None:
    written = "{" + before + '"input": "a\\n\\ud83d\\udc4b\\ud83dx", "y": 1}'
    assert read(written, list(range(len(written)))) == "a\n👋\ufffdx"
    assert read(written[:-1], []) == written[:-1]


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert read(r'{"input": "\ud83dx\udc4b\ud83d\ud83d\udc4b"}', [16]) == "\ufffdx\ufffd\ufffd👋"
    assert read(r'{"input": "x\ud83d"}', [16]) == "x\ufffd"


def test_line_ends_and_escapes_that_json_does_not_know_stand_for_themselves() -> None:
    written = '{"input": "it\\\'s\n\\q"}'
    assert read(written, list(range(len(written)))) == "it's\nq"


def call(name: str, *arguments: str) -> list[Delta]:
    return [CallStart(name), *map(CallArguments, arguments)]


def filtered(*deltas: Delta, single: bool = False) -> tuple[Delta, ...]:
    made = CallRouter(CallableTools(functions={"f", "g"}, custom={"c"}, single=single))
    return merge_deltas([*made.feed(deltas), *made.flush()])


ROUTED: list[tuple[list[Delta], list[Delta]]] = [
    ([*call("f", '{"a"', ":1}"), *call("g", "{}"), Text("x")], [*call("f", '{"a":1}'), *call("g", "{}"), Text("x")]),
    ([*call("c", '{"inp', 'ut": "a\\n', 'b"}'), Text("x")], [CustomStart("c"), CustomInput("a\nb"), Text("x")]),
    # A custom call with arguments of another form loses nothing.
    (call("c", '{"in', 'the": 1}'), [CustomStart("c"), CustomInput('{"inthe": 1}')]),
    (call("c", '{"in'), [CustomStart("c")]),
    # A call that is not allowed becomes text.
    (
        [Text("hm "), *call("rm", '{"path"', ':"/"}'), *call("f", "{}")],
        [Text('hm {"name": "rm", "arguments": {"path":"/"}}'), *call("f", "{}")],
    ),
    (call("rm", '{"pa'), [Text('{"name": "rm", "arguments": {"pa')]),
]


@pytest.mark.parametrize(("said", "expected"), ROUTED)
def test_calls_are_routed_by_name(said: list[Delta], expected: list[Delta]) -> None:
    assert filtered(*said) == tuple(expected)


def test_the_answer_ends_at_a_second_call_if_one_is_the_maximum() -> None:
    made = CallRouter(CallableTools(functions={"f"}, single=True))
    said = made.feed([Reasoning("r"), *call("f", "{}"), Text("x"), CallStart("f"), CallArguments("{}"), Text("y")])
    assert merge_deltas(said) == (Reasoning("r"), *call("f", "{}"), Text("x"))
    assert made.ended
    assert made.flush() == []


def test_a_disallowed_call_does_not_count_as_the_single_call() -> None:
    assert filtered(*call("rm", "{}"), *call("f", "{}"), single=True) == (
        Text('{"name": "rm", "arguments": {}}'),
        *call("f", "{}"),
    )


@pytest.mark.parametrize(
    ("name", "arguments", "whole"),
    [
        ("f", '{"a": 1}', True),
        ("f", "", True),
        ("f", '{"a": 1', False),
        ("f", "[1]", False),
        ("f", '"a"', False),
        ("c", '{"input": "ls"}', True),
        ("c", "", True),
        ("c", '{"input": "ls', False),
        ("c", "ls -l", True),
    ],
)
def test_a_call_that_is_not_whole_ends_as_cut_and_so_does_one_with_a_stop_string(
    name: str, arguments: str, whole: bool
) -> None:
    said = call(name, arguments) if arguments else call(name)
    for ends in ([CallStart("f")], [Text("x")]):
        assert (CallCut() in filtered(*said, *ends)) is not whole
    if not whole or not arguments or arguments == "ls -l":
        for cut in (False, True):  # A limit cuts the response instead.
            router = CallRouter(CallableTools(functions={"f"}, custom={"c"}))
            router.feed(said)
            assert (CallCut() in router.flush(cut=cut, stopped=not cut)) is not cut
