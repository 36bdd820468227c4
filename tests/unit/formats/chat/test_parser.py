"""A chat answer's tokens to deltas, in the scripted engine's format: a function of the whole token list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from tests.support.scripted.output_format import ScriptedOutputFormat, logprob_of
from tests.support.scripted.script import END, marked_tokens
from workers.engine.output_format import OutputSpec, ToolChoice
from workers.formats.answer import AnswerRules, merge_deltas
from workers.formats.calls.router import CallableTools
from workers.formats.chat.parser import ChatParser
from workers.formats.turn import Parsed

CALLING = ScriptedOutputFormat(OutputSpec(choice=ToolChoice.AUTO))
RULES = AnswerRules(tools=CallableTools(functions=frozenset({"f", "g"}), custom=frozenset({"c"})))

WEATHER = '<tool_call>{"name": "f", "arguments": {"city": "Paris", "n": {"a": [1]}}}</tool_call>'
ARGUMENTS = CallArguments('{"city": "Paris", "n": {"a": [1]}}')
SAID: dict[str, tuple[Delta, ...]] = {
    "Hello, wörld 👋!": (Text("Hello, wörld 👋!"),),
    "<think>\nI see: 你好.\n</think>\n\nIt is so.": (Reasoning("I see: 你好."), Text("It is so.")),
    f'<think>\nA call.\n</think>\n\n{WEATHER}\n<tool_call>\n{{"name": "g", "arguments": {{}}}}\n</tool_call>': (
        *(Reasoning("A call."), CallStart("f"), ARGUMENTS, CallStart("g"), CallArguments("{}")),
    ),
    f"Let me look.\n{WEATHER}": (Text("Let me look.\n"), CallStart("f"), ARGUMENTS),
    '<tool_call>{"name": "c", "arguments": {"input": "a\\n\\u00e9\\ud83d\\udc4b\\"b"}}</tool_call>': (
        *(CustomStart("c"), CustomInput('a\né👋"b')),
    ),
    '<tool_call>{"name": "rm", "arguments": {"path": "/"}}</tool_call>': (
        Text('{"name": "rm", "arguments": {"path": "/"}}'),
    ),
    "<think></think>ok": (Text("ok"),),
    "<tool_call>no call</tool_call>": (),
    "1. red\n2. green\n3. blue": (Text("1. red\n2. green\n3. blue"),),
}
SAMPLES = list(SAID)
STOPS = [(), ("green",), ("Paris", "blue"), ("\n\n",), ("o", "é"), ("lloX", "o, X", ", wX"), ("I sX", " see:X", ":X")]


def parser(rules: AnswerRules = RULES, output_format: ScriptedOutputFormat = CALLING) -> ChatParser:
    return ChatParser(output_format, (), rules)


def likely(tokens: list[int]) -> list[dict[str, Any]]:
    return [logprob_of(token, 1) for token in tokens]


def parsed(
    text: str, rules: AnswerRules = RULES, cut: int | None = None, output_format: ScriptedOutputFormat = CALLING
) -> Parsed:
    made = parser(rules, output_format)
    tokens = [*marked_tokens(text), END][:cut]
    return whole(made.feed(tokens, likely(tokens)) + made.flush())


def whole(said: Parsed) -> Parsed:
    return Parsed(merge_deltas(said.deltas), said.tokens)


def said_of(*deltas: Delta) -> tuple[Delta, ...]:
    """The deltas without log probabilities."""
    return tuple(Text(delta.text) if isinstance(delta, Text) else delta for delta in deltas)


@pytest.mark.parametrize(("text", "expected"), SAID.items())
def test_text_becomes_these_deltas(text: str, expected: tuple[Delta, ...]) -> None:
    said = parsed(text)
    assert said_of(*said.deltas) == expected
    assert said.tokens == (*marked_tokens(text), END)


@given(text=st.sampled_from(SAMPLES), stops=st.sampled_from(STOPS), cut=st.integers(1, 120), data=st.data())
def test_the_result_depends_neither_on_batches_nor_on_where_a_new_worker_takes_over(
    text: str, stops: tuple[str, ...], cut: int, data: st.DataObject
) -> None:
    rules = replace(RULES, stop=stops, min_tokens=data.draw(st.sampled_from([0, 9])))
    tokens = [*marked_tokens(text), END][:cut]
    expected = parsed(text, rules, cut)
    told = likely if data.draw(st.booleans(), "logprobs") else lambda _: []
    made, committed, said = parser(rules), [], Parsed()
    place = 0
    while place < len(tokens) and not made.ended:
        stop = place + data.draw(st.integers(1, 20))
        out = made.feed(tokens[place:stop], told(tokens[place:stop]))
        said, place = said + out, stop
        committed += out.tokens
        if data.draw(st.booleans()):  # the worker dies; unsettled tokens are generated again
            made = parser(rules)
            made.feed(committed)
            place = len(committed)
    said += made.flush()
    assert said_of(*whole(said).deltas) == said_of(*expected.deltas)
    assert said.tokens == expected.tokens
    assert told is not likely or whole(said) == expected
    assert made.tokens == len(expected.tokens)


@pytest.mark.parametrize("text", SAMPLES[:5])
def test_a_cut_at_any_token_leaks_no_marks_and_takes_nothing_back(text: str) -> None:
    full = said_of(*parsed(text).deltas)
    for cut in range(1, len(marked_tokens(text))):
        cut_deltas = said_of(*(each for each in parsed(text, cut=cut).deltas if not isinstance(each, CallCut)))
        assert len(cut_deltas) <= len(full)
        for ours, theirs in zip(cut_deltas, full, strict=False):
            assert type(ours) is type(theirs)
        for ours, theirs in zip(cut_deltas[:-1], full, strict=False):
            assert ours == theirs
        if cut_deltas and isinstance(cut_deltas[-1], Text | Reasoning | CallArguments | CustomInput):
            last, same = cut_deltas[-1], full[len(cut_deltas) - 1]
            assert not isinstance(same, CallStart | CustomStart)
            assert same.text.startswith(last.text.rstrip("\ufffd"))  # type: ignore[union-attr]


def test_without_tools_and_with_choice_none_marks_of_calls_are_text() -> None:
    none = ScriptedOutputFormat(OutputSpec(choice=ToolChoice.NONE))
    assert said_of(*parsed(WEATHER, AnswerRules(), output_format=none).deltas) == (Text(WEATHER),)


def test_reasoning_tokens_are_counted_with_their_opening_and_without_the_rest() -> None:
    made = parser()
    made.feed(marked_tokens("<think>abc</think>de"))
    assert (made.reasoning_tokens, made.tokens) == (4, 7)


def test_a_stop_string_ends_the_answer_and_later_tokens_are_not_read() -> None:
    made = parser(replace(RULES, stop=("green",)))
    said = made.feed([*marked_tokens("1. red\n2. green\n3. blue"), END]) + made.flush()
    assert made.ended
    assert said_of(*said.deltas) == (Text("1. red\n2. "),)
    assert made.tokens == len(said.tokens) == len("1. red\n2. green")
    assert made.feed([65]) == Parsed()


@pytest.mark.parametrize(("stop", "whole"), [("Par", False), ("</tool_call>", True)])
def test_a_call_within_which_a_stop_string_stands_is_not_whole(stop: str, whole: bool) -> None:
    said = parsed(WEATHER, replace(RULES, stop=(stop,)))
    assert (CallCut() in said.deltas) is not whole


@pytest.mark.parametrize("stop", ["red", "\n\n", "\n"])
def test_no_stop_string_counts_in_thoughts_or_before_the_text_behind_them(stop: str) -> None:
    said = parsed("<think>\nThe red\n\none.\n</think>\n\nIt is red.\n\nYes.", replace(RULES, stop=(stop,)))
    assert said_of(*said.deltas) == (Reasoning("The red\n\none."), Text("It is red.\n\nYes.".split(stop)[0]))


def test_no_stop_string_spans_a_text_and_a_call() -> None:
    said = parsed(f"Look {WEATHER}", replace(RULES, stop=(' {"',)))
    assert said_of(*said.deltas) == (Text("Look "), CallStart("f"), CallArguments('{"city": "Paris", "n":'), CallCut())


def test_only_text_has_log_probabilities() -> None:
    [thought, text, start, arguments] = parsed(f"<think>hm</think>\n\nSo é.{WEATHER}").deltas
    assert (thought, start) == (Reasoning("hm"), CallStart("f"))
    assert isinstance(arguments, CallArguments)
    assert isinstance(text, Text)
    spelled = bytes(byte for entry in text.logprobs for byte in entry["bytes"])
    assert spelled.decode() == text.text == "So é."


@given(text=st.sampled_from(SAMPLES[-1:] + SAMPLES[:1]), stop=st.sampled_from(["green", "wör", "👋!", "3. "]))
def test_log_probabilities_end_with_the_text_before_a_stop_string(text: str, stop: str) -> None:
    said = parsed(text, replace(RULES, stop=(stop,)))
    spelled = bytes(byte for delta in said.deltas for entry in delta.logprobs for byte in entry["bytes"])  # type: ignore[union-attr]
    assert spelled.decode() == text.partition(stop)[0]
