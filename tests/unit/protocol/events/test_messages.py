"""Messages: preambles and answers apart, each with its phase, and an empty one where the model said nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.protocol.events.deltas import (
    Annotation,
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
from app.protocol.events.machine import ResponseStream
from app.protocol.types import Json
from tests.support import grammar
from tests.support.deltas import fed, play


def output_of(*deltas: Delta, ending: str = "stop") -> list[Json]:
    stream, events = play(list(deltas), ending)
    grammar.check(events)
    output: list[Json] = stream.response["output"]
    return output


def phase_and_text(item: Json) -> tuple[Any, str]:
    return item.get("phase"), "".join(part.get("text") or part.get("refusal") for part in item["content"])


def test_text_of_another_phase_opens_a_message_of_its_own() -> None:
    look = [Text("Look", phase="commentary"), Text(":", phase="commentary")]
    items = output_of(*look, Text("It is ", phase="final_answer"), Text("so.", phase="final_answer"), Text("{}"))
    assert [*map(phase_and_text, items)] == [("commentary", "Look:"), ("final_answer", "It is so."), (None, "{}")]
    [item] = output_of(Text("a"), Annotation({"type": "file_path"}), Text("b"), Refusal("c"))
    assert phase_and_text(item) == (None, "abc")
    assert "phase" not in item


def test_a_restored_machine_knows_the_phase_of_its_open_message() -> None:
    stream, events = fed(Text("a", phase="commentary"))
    stream = ResponseStream.restore(copy.deepcopy(events))  # restore changes the events
    events += stream.feed(Text("b", phase="commentary"))
    events += stream.feed(Text("c", phase="final_answer"))
    events += stream.finish(Finish(FinishReason.STOP), 1)
    grammar.check(events)
    assert [*map(phase_and_text, stream.response["output"])] == [("commentary", "ab"), ("final_answer", "c")]


SILENT: dict[str, list[Delta]] = {
    "nothing": [],
    "reasoning": [Reasoning("Hm.")],
    "a hosted call": [CodeStart("python"), TurnEnd(), ToolEnded(0, True, {"outputs": None})],
    "a list": [Listing("docs"), Listed(0, ())],
    "a call that was not run": [CodeStart("python")],
}


@pytest.mark.parametrize("deltas", SILENT.values(), ids=SILENT)
def test_an_answer_without_text_ends_in_an_empty_message(deltas: list[Delta]) -> None:
    *_, last = output_of(*deltas)
    assert (last["type"], last["role"], last["status"]) == ("message", "assistant", "completed")
    assert last["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert "phase" not in last


@pytest.mark.parametrize(
    "delta", [Text("a"), Refusal("no"), CallStart("f"), CustomStart("f"), Approval("docs", "f", "{}")]
)
def test_a_message_or_something_for_the_client_to_answer_is_an_answer(delta: Delta) -> None:
    items = output_of(Reasoning("Hm."), delta)
    assert not any(part.get("text") == "" for item in items for part in item.get("content", ()))


def test_a_response_that_was_cut_before_anything_has_an_incomplete_message_and_one_without_an_answer_none() -> None:
    (message,) = output_of(ending="length")
    assert (message["type"], message["status"], message["content"][0]["text"]) == ("message", "incomplete", "")
    assert [item["type"] for item in output_of(Reasoning("Hm."), ending="length")] == ["reasoning"]
    assert output_of(ending="fail") == output_of(ending="cancel") == []
    stream, events = fed()
    grammar.check(events + stream.finish(Finish(FinishReason.STOP, counted=True), 1))
    assert stream.response["output"] == []
