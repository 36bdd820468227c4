"""Responses in which the model said nothing: an empty message stands for the answer."""

from __future__ import annotations

import pytest

from app.protocol.events.deltas import (
    Approval,
    CallStart,
    CodeStart,
    CustomStart,
    Delta,
    Finish,
    FinishReason,
    Listed,
    Listing,
    Reasoning,
    Refusal,
    Text,
    ToolEnded,
    TurnEnd,
)
from app.protocol.types import Json
from tests.support import grammar
from tests.support.deltas import new_stream, play

HOSTED: list[Delta] = [CodeStart("python"), TurnEnd(), ToolEnded(0, True, {"outputs": None})]
SILENT: list[list[Delta]] = [[], [Reasoning("Hm.")], HOSTED, [Listing("docs"), Listed(0, ())], [CodeStart("python")]]
ANSWERED: list[list[Delta]] = [
    [Text("a")],
    [Refusal("no")],
    [CallStart("f")],
    [CustomStart("f")],
    [Approval("docs", "f", "{}")],
    [Reasoning("Hm."), CallStart("f")],
]


def output_of(deltas: list[Delta], ending: str = "stop") -> list[Json]:
    stream, events = play(deltas, ending)
    grammar.check(events)
    output: list[Json] = stream.response["output"]
    return output


@pytest.mark.parametrize("deltas", SILENT, ids=["nothing", "reasoning", "a hosted call", "a list", "a call unrun"])
def test_an_answer_without_text_ends_in_an_empty_message(deltas: list[Delta]) -> None:
    *_, last = output_of(deltas)
    assert (last["type"], last["role"], last["status"]) == ("message", "assistant", "completed")
    assert last["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert "phase" not in last


@pytest.mark.parametrize("deltas", ANSWERED)
def test_a_message_or_something_for_the_client_to_answer_is_an_answer(deltas: list[Delta]) -> None:
    assert not any(part.get("text") == "" for item in output_of(deltas) for part in item.get("content", ()))


def test_the_empty_message_has_the_events_of_a_message_without_deltas() -> None:
    assert [event["type"] for event in play([], "stop")[1][3:]] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_an_answer_that_was_cut_before_anything_has_an_incomplete_empty_message() -> None:
    (message,) = output_of([], "length")
    assert (message["type"], message["status"], message["content"][0]["text"]) == ("message", "incomplete", "")


def test_an_answer_that_was_cut_in_its_reasoning_ends_there() -> None:
    assert [item["type"] for item in output_of([Reasoning("Hm.")], "length")] == ["reasoning"]


@pytest.mark.parametrize("ending", ["fail", "cancel"])
def test_a_failed_or_cancelled_response_gets_no_message(ending: str) -> None:
    assert output_of([], ending) == []


def test_a_counted_prompt_has_no_output() -> None:
    stream = new_stream()
    events = stream.accept() + stream.begin() + stream.finish(Finish(FinishReason.STOP, counted=True), 1)
    grammar.check(events)
    assert stream.response["output"] == []
