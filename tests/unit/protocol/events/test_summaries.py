"""Reasoning that is shown twice: as itself, and as the summary that a request asked for."""

from __future__ import annotations

import pytest
from hypothesis import given

from app.protocol.events.deltas import Delta, Reasoning, Text
from app.protocol.types import Json
from tests.support.deltas import deltas, end, endings, fed, new_stream, play

THOUGHTS: list[Delta] = [Reasoning("Two "), Reasoning("and two."), Text("4")]


def names_and_texts(events: list[Json]) -> list[tuple[str, str]]:
    """The events of the first item, each with its text."""
    own = [event for event in events if event.get("output_index") == 0]
    return [(event["type"].removeprefix("response."), event.get("delta", event.get("text", ""))) for event in own]


def test_the_summarys_events_stand_among_those_of_the_reasoning() -> None:
    assert names_and_texts(play(THOUGHTS, "stop", summary="auto")[1]) == [
        ("output_item.added", ""),
        ("content_part.added", ""),
        ("reasoning_summary_part.added", ""),
        ("reasoning_text.delta", "Two "),
        ("reasoning_summary_text.delta", "Two "),
        ("reasoning_text.delta", "and two."),
        ("reasoning_summary_text.delta", "and two."),
        ("reasoning_text.done", "Two and two."),
        ("content_part.done", ""),
        ("reasoning_summary_text.done", "Two and two."),
        ("reasoning_summary_part.done", ""),
        ("output_item.done", ""),
    ]


@pytest.mark.parametrize(("ending", "status"), [("length", "incomplete"), ("cancel", "incomplete"), ("stop", None)])
def test_a_summary_that_is_cut_says_so_and_keeps_its_text(ending: str, status: str | None) -> None:
    stream, events = play([Reasoning("half a tho")], ending, summary="auto")
    (done,) = (event for event in events if event["type"] == "response.reasoning_summary_part.done")
    assert done.get("status") == status
    assert stream.response["output"][0]["summary"] == [done["part"]] == [{"type": "summary_text", "text": "half a tho"}]


def test_sealed_reasoning_holds_its_text_once() -> None:
    stream = new_stream(summary="auto")
    stream.seal_reasoning(lambda text: f"sealed {text}")
    fed(Reasoning("a"), Reasoning("b"), stream=stream)
    end(stream, "stop")
    assert stream.response["output"][0]["encrypted_content"] == "sealed ab"


@given(deltas(), endings)
def test_without_its_own_events_a_summary_changes_nothing(sequence: list[Delta], ending: str) -> None:
    plain, asked = play(sequence, ending)[1], play(sequence, ending, summary="auto")[1]
    rest = [event for event in asked if "reasoning_summary" not in event["type"]]
    assert [_without_summary(event) for event in rest] == [_without_summary(event) for event in plain]


def _without_summary(event: Json) -> Json:
    """The event without numbers, summaries and what the response says was asked."""
    event = {**event, "sequence_number": None}
    if "item" in event:
        event["item"] = {**event["item"], "summary": []}
    if "response" in event:
        output = [{**item, "summary": []} for item in event["response"]["output"]]
        event["response"] = {**event["response"], "reasoning": None, "output": output}
    return event
