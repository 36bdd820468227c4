"""Preambles and answers are separate messages, each with its phase."""

from __future__ import annotations

import copy

from app.protocol.events.deltas import Annotation, Delta, Finish, FinishReason, Refusal, Text
from app.protocol.events.machine import ResponseStream
from tests.support import grammar
from tests.support.deltas import new_stream, play


def output(*deltas: Delta) -> list[dict[str, object]]:
    stream, events = play(list(deltas), "stop")
    grammar.check(events)
    made: list[dict[str, object]] = stream.response["output"]
    return made


def phase_and_text(item: dict[str, object]) -> tuple[object, str]:
    content = item["content"]
    assert isinstance(content, list)
    return item.get("phase"), "".join(part.get("text") or part.get("refusal") for part in content)


def test_text_of_another_phase_opens_a_message_of_its_own() -> None:
    items = output(
        Text("Look", phase="commentary"),
        Text(":", phase="commentary"),
        Text("It is ", phase="final_answer"),
        Text("so.", phase="final_answer"),
        Text("{}"),
    )
    assert [phase_and_text(item) for item in items] == [
        ("commentary", "Look:"),
        ("final_answer", "It is so."),
        (None, "{}"),
    ]


def test_messages_without_a_phase_have_no_such_field() -> None:
    [item] = output(Text("a"), Annotation({"type": "file_path"}), Text("b"), Refusal("c"))
    assert phase_and_text(item) == (None, "abc")
    assert "phase" not in item


def test_a_restored_machine_knows_the_phase_of_its_open_message() -> None:
    stream = new_stream()
    events = [*stream.accept(), *stream.begin(), *stream.feed(Text("a", phase="commentary"))]
    stream = ResponseStream.restore(copy.deepcopy(events))  # restore changes the events
    events += stream.feed(Text("b", phase="commentary"))
    events += stream.feed(Text("c", phase="final_answer"))
    events += stream.finish(Finish(FinishReason.STOP), 1)
    grammar.check(events)
    assert [phase_and_text(item) for item in stream.response["output"]] == [("commentary", "ab"), ("final_answer", "c")]
