"""The event machine, tested against its table, a grammar of events and the openai package's own reader."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from app.protocol.events import deltas as all_deltas
from app.protocol.events import frames
from app.protocol.events.chunk import repeated
from app.protocol.events.deltas import (
    Annotation,
    Approval,
    CallArguments,
    CallCut,
    CallStart,
    CodeStart,
    CodeText,
    Compacted,
    Compacting,
    CompactionStart,
    CustomInput,
    CustomStart,
    Delta,
    Finish,
    FinishReason,
    Listed,
    Listing,
    LocalCall,
    McpArguments,
    McpStart,
    Piece,
    Reasoning,
    Refusal,
    Text,
    ToolEnded,
    ToolSearch,
    TurnEnd,
    WholeCall,
)
from app.protocol.events.fold import fold
from app.protocol.events.machine import DamagedLog, IllegalInput, ResponseStream
from app.protocol.events.table import TABLE, Input, Key, State
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.local_kinds import APPLY_PATCH, SHELL
from app.protocol.response import brief_object
from app.protocol.types import Json
from tests.support import grammar
from tests.support.deltas import deltas, end, endings, new_stream, play, summaries
from tests.support.sdk import mismatches

SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

INPUTS: dict[Key, Any] = {
    Input.ACCEPT: ResponseStream.accept,
    Input.BEGIN: ResponseStream.begin,
    Text: lambda stream: stream.feed(Text("a")),
    Input.OTHER_TEXT: lambda stream: stream.feed(Text("a", phase="commentary")),
    Reasoning: lambda stream: stream._process(Reasoning, Reasoning("a")),
    Input.SUMMARIZED: lambda stream: stream._process(Input.SUMMARIZED, Reasoning("a")),
    CallStart: lambda stream: stream.feed(CallStart("f")),
    CallCut: lambda stream: stream.feed(CallCut()),
    CallArguments: lambda stream: stream.feed(CallArguments("{}")),
    Refusal: lambda stream: stream.feed(Refusal("a")),
    Annotation: lambda stream: stream.feed(Annotation({"type": "file_path"})),
    CompactionStart: lambda stream: stream.feed(CompactionStart()),
    Compacting: lambda stream: stream.feed(Compacting()),
    Compacted: lambda stream: stream.feed(Compacted("lh1_x")),
    CustomStart: lambda stream: stream.feed(CustomStart("f")),
    CustomInput: lambda stream: stream.feed(CustomInput("x")),
    CodeStart: lambda stream: stream.feed(CodeStart("python")),
    CodeText: lambda stream: stream.feed(CodeText("1")),
    McpStart: lambda stream: stream.feed(McpStart("docs", "f")),
    McpArguments: lambda stream: stream.feed(McpArguments("{}")),
    WholeCall: lambda stream: stream.feed(
        WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": {"type": "search", "query": "x"}})
    ),
    ToolSearch: lambda stream: stream.feed(ToolSearch({"query": "x"})),
    LocalCall: lambda stream: stream.feed(LocalCall(SHELL, {"action": {"commands": ["ls"]}})),
    Approval: lambda stream: stream.feed(Approval("docs", "f", "{}")),
    Listing: lambda stream: stream.feed(Listing("docs")),
    Listed: lambda stream: stream.feed(Listed(0, ())),
    TurnEnd: lambda stream: stream.feed(TurnEnd()),
    ToolEnded: lambda stream: stream.feed(ToolEnded(1, True, {"outputs": None})),
    Input.FINISH: lambda stream: stream._process(Input.FINISH, (Finish(FinishReason.STOP), 1)),
    Input.SILENT_FINISH: lambda stream: stream._process(Input.SILENT_FINISH, (Finish(FinishReason.STOP), 1)),
    Input.FAIL: lambda stream: stream.fail({"code": "server_error", "message": "x"}),
    Input.CANCEL: ResponseStream.cancel,
}
PATHS: dict[State, list[Key]] = {
    State.NEW: [],
    State.QUEUED: [Input.ACCEPT],
    State.IDLE: [Input.ACCEPT, Input.BEGIN, Listing, CodeStart, TurnEnd],
    State.MESSAGE: [Input.ACCEPT, Input.BEGIN, Text],
    State.REASONING: [Input.ACCEPT, Input.BEGIN, Reasoning],
    State.SUMMARIZED: [Input.ACCEPT, Input.BEGIN, Input.SUMMARIZED],
    State.CALL: [Input.ACCEPT, Input.BEGIN, CallStart],
    State.REFUSAL: [Input.ACCEPT, Input.BEGIN, Refusal],
    State.COMPACTION: [Input.ACCEPT, Input.BEGIN, CompactionStart],
    State.CUSTOM: [Input.ACCEPT, Input.BEGIN, CustomStart],
    State.CODE: [Input.ACCEPT, Input.BEGIN, CodeStart],
    State.MCP: [Input.ACCEPT, Input.BEGIN, McpStart],
    State.ENDED: [Input.ACCEPT, Input.CANCEL],
}


def at(state: State) -> ResponseStream:
    stream = new_stream()
    for step in PATHS[state]:
        INPUTS[step](stream)
    assert stream.state is state
    return stream


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("given_input", INPUTS)
def test_every_cell_leads_to_its_state_and_a_missing_cell_changes_nothing(state: State, given_input: Key) -> None:
    stream = at(state)
    before = copy.deepcopy((stream.response, stream.next_sequence))
    if given_input in TABLE[state]:
        events = INPUTS[given_input](stream)
        assert stream.state is TABLE[state][given_input][1]
        assert [event["sequence_number"] for event in events] == list(range(before[1], stream.next_sequence))
    else:
        with pytest.raises(IllegalInput, match=state.value):
            INPUTS[given_input](stream)
        assert stream.state is state
        assert (stream.response, stream.next_sequence) == before


def test_the_table_knows_every_state_and_every_input() -> None:
    assert set(TABLE) == set(State)
    kinds = {kind for kind in vars(all_deltas).values() if isinstance(kind, type) and issubclass(kind, Delta)}
    assert {key for row in TABLE.values() for key in row} == {*Input, *kinds} - {Delta, Piece} == set(INPUTS)


@given(deltas(), endings, summaries)
def test_every_legal_sequence_keeps_the_grammar(sequence: list[Delta], ending: str, summary: str | None) -> None:
    _, events = play(sequence, ending, summary=summary)
    grammar.check(events)


@given(deltas(), endings, summaries)
def test_every_event_is_an_event_of_the_openai_package(sequence: list[Delta], ending: str, summary: str | None) -> None:
    for event in play(sequence, ending, summary=summary)[1]:
        found = mismatches(ResponseStreamEvent, event)
        assert set(found.values()) <= {"malformed_call", "unfinished_reasoning"}


@given(deltas(), st.sampled_from(["stop", "length"]), summaries)
def test_the_openai_packages_reader_rebuilds_the_same_output(
    sequence: list[Delta], ending: str, summary: str | None
) -> None:
    stream, events = play(sequence, ending, summary=summary)
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    brief = brief_object(*(stream.response[name] for name in ("model", "id", "created_at")))
    for event in events:
        state.handle_event(SDK_EVENT.validate_python(copy.deepcopy(event)))
        repeat = repeated("resp_1", brief, event["sequence_number"])  # The stream may be silent behind each event.
        assert repeat is not None
        state.handle_event(SDK_EVENT.validate_python(frames.decode(repeat.frames)[0]))
    if ending == "stop":
        rebuilt = [item.to_dict() for item in state._completed_response.output]
        assert [drop_parsed(item) for item in rebuilt] == stream.response["output"]


def drop_parsed(item: dict[str, Any]) -> dict[str, Any]:
    """Returns the item without the fields that the openai package adds for its own `.parse`."""
    kept = {key: value for key, value in item.items() if key not in ("parsed", "parsed_arguments")}
    if "content" in kept:
        kept["content"] = [drop_parsed(part) for part in kept["content"]]
    return kept


@given(deltas(), endings, summaries)
def test_folding_the_events_gives_the_response(sequence: list[Delta], ending: str, summary: str | None) -> None:
    stream, events = play(sequence, ending, summary=summary)
    wire = frames.decode(frames.encode_all(events))
    snapshot = fold(wire)
    shown = {"error": {"code": "invalid_prompt", "message": "The response was cancelled."}}
    assert snapshot.response == stream.response | (shown if ending == "cancel" else {})
    assert snapshot.next_sequence == len(events)
    assert events[-1]["response"] == snapshot.response


class NotToCopy(str):
    """Text that must not be added to other text one piece at a time: each time would copy all of it."""

    def __radd__(self, text: str) -> str:
        raise AssertionError(f"{len(text)} characters are copied")


def test_folding_copies_a_text_once_and_not_at_each_delta() -> None:
    stream = new_stream()
    events = stream.accept() + stream.begin()
    for delta in (*[all_deltas.Reasoning("Hm. ")] * 3, *[all_deltas.Text("word ")] * 3):
        events += stream.feed(delta)
    wire = [
        {**event, "delta": NotToCopy(event["delta"])} if "delta" in event else event
        for event in frames.decode(frames.encode_all(events))
    ]
    reasoning, message = fold(wire).response["output"]
    assert reasoning["content"][0]["text"] == "Hm. " * 3
    assert message["content"][0]["text"] == "word " * 3


@given(deltas(), endings, summaries, st.data())
def test_a_machine_restored_anywhere_goes_on_as_if_nothing_had_happened(
    sequence: list[Delta], ending: str, summary: str | None, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(sequence)))
    stream = new_stream(summary=summary)
    events = stream.accept() + stream.begin()
    for delta in sequence[:cut]:
        events += stream.feed(delta)
    restored = ResponseStream.restore(frames.decode(frames.encode_all(events)))
    assert (restored.state, restored.pending) == (stream.state, stream.pending)
    expected, actual = [], []
    for delta in sequence[cut:]:
        expected += stream.feed(delta)
        actual += restored.feed(delta)
    assert actual + end(restored, ending) == expected + end(stream, ending)
    assert restored.response == stream.response


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, 1), slice(0, None, 2)])
def test_a_log_with_a_missing_event_is_not_continued(kept: slice) -> None:
    stream = new_stream()
    events = [*stream.accept(), *stream.begin(), *stream.feed(Text("a"))]
    with pytest.raises(DamagedLog):
        ResponseStream.restore(copy.deepcopy(events[kept]), stream.next_sequence)


def test_a_machine_without_its_log_can_end_the_response() -> None:
    stream = new_stream()
    stream.accept()
    ended = ResponseStream.without_log({**stream.response, "status": "in_progress"}, 7)
    events = ended.fail({"code": "server_error", "message": "lost"})
    assert [(event["type"], event["sequence_number"]) for event in events] == [("error", 7), ("response.failed", 8)]
    assert ended.response["output"] == []


def test_a_compaction_shows_that_it_goes_on_and_nothing_of_its_text() -> None:
    stream, events = play([CompactionStart(), Compacting(), Compacting(), Compacted("lh1_x"), Text("a")], "stop")
    grammar.check(events)
    item = {"id": "cmp_0a1b_0", "type": "compaction", "encrypted_content": "lh1_x", "status": "completed"}
    assert stream.response["output"][0] == item
    assert events[3]["item"] == item | {"encrypted_content": "", "status": "in_progress"}
    compacting = {"type": "response.compaction.compacting", "item_id": "cmp_0a1b_0", "output_index": 0}
    assert events[4:6] == [{**compacting, "sequence_number": number} for number in (4, 5)]
    assert events[6] == {
        "type": "response.output_item.done",
        "sequence_number": 6,
        "output_index": 0,
        "item": item,
    }


@pytest.mark.parametrize("ending", ["fail", "cancel"])
def test_a_compaction_that_is_cut_holds_nothing(ending: str) -> None:
    stream, events = play([CompactionStart(), Compacting()], ending)
    grammar.check(events)
    (item,) = stream.response["output"]
    assert (item["status"], item["encrypted_content"]) == ("incomplete", "")


def test_nothing_else_is_written_within_a_compaction() -> None:
    stream = new_stream()
    stream.accept(), stream.begin(), stream.feed(CompactionStart())
    for delta in (Text("a"), Reasoning("a"), CallStart("f"), CompactionStart(), TurnEnd()):
        with pytest.raises(IllegalInput):
            stream.feed(delta)
    with pytest.raises(IllegalInput):
        stream.finish(Finish(FinishReason.STOP), 5)


def test_an_event_never_changes_after_it_was_made() -> None:
    stream = new_stream()
    events = stream.accept() + stream.begin() + stream.feed(Text("one"))
    before = copy.deepcopy(events)
    stream.feed(Text(" two"))
    stream.finish(Finish(FinishReason.STOP), 5)
    assert events == before


def test_the_same_deltas_give_the_same_events() -> None:
    sequence = [Reasoning("hm"), Text("a"), CallStart("f"), CallArguments("{}")]
    assert play(sequence, "stop")[1] == play(sequence, "stop")[1]


def test_a_length_cut_marks_the_open_item_and_the_response_incomplete() -> None:
    stream, events = play([Text("half a sent")], "length")
    assert events[-1]["type"] == "response.incomplete"
    assert stream.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert stream.response["output"][0]["status"] == "incomplete"
    assert stream.response["completed_at"] is None


@pytest.mark.parametrize("call", [[CallStart("f"), CallArguments('{"a')], [CustomStart("c"), CustomInput("ls")]])
@pytest.mark.parametrize("ending", ["stop", "length"])
def test_a_call_that_is_not_whole_is_incomplete_and_so_is_the_response(call: list[Delta], ending: str) -> None:
    stream, events = play([*call, CallCut(), CallStart("g"), CallArguments("{}")], ending)
    assert fold(events).response == stream.response
    assert stream.response["output"][0]["status"] == "incomplete"
    reason = "malformed_call" if ending == "stop" else "max_output_tokens"
    assert (stream.response["status"], stream.response["incomplete_details"]) == ("incomplete", {"reason": reason})
    for cut in range(3, len(events)):
        restored = ResponseStream.restore(events[:cut])
        assert restored.next_sequence == cut


FORM = {"format": {"type": "json_schema", "name": "p", "schema": {}}}


@pytest.mark.parametrize(
    ("asked", "said", "incomplete"),
    [
        ({"text": FORM}, [Reasoning("Hm")], True),
        ({"tool_choice": "required"}, [Reasoning("Hm")], True),
        ({"tool_choice": {"type": "function", "name": "f"}}, [Reasoning("Hm")], True),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, [Reasoning("Hm")], True),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, [Reasoning("Hm")], False),
        ({}, [Reasoning("Hm")], False),
        ({"text": FORM}, [Reasoning("Hm"), Text("{}")], False),
        ({"tool_choice": "required"}, [Reasoning("Hm"), CallStart("f"), CallArguments("{}")], False),
    ],
)
def test_thoughts_alone_are_incomplete_where_a_form_was_asked(asked: Json, said: list[Delta], incomplete: bool) -> None:
    made = new_stream()
    stream = ResponseStream({**made.response, **asked})
    for step in (stream.accept, stream.begin):
        step()
    for delta in said:
        stream.feed(delta)
    stream.finish(Finish(FinishReason.STOP), 5)
    details = {"reason": "unfinished_reasoning"} if incomplete else None
    assert stream.response["incomplete_details"] == details
    assert stream.response["output"][0]["status"] == ("incomplete" if incomplete else "completed")


def test_only_a_completed_response_has_completed_at() -> None:
    assert play([Text("x")], "stop")[0].response["completed_at"] == 1_700_000_009
    assert play([Text("x")], "cancel")[0].response["completed_at"] is None


def test_a_failure_closes_the_open_item_then_emits_error_then_failed() -> None:
    _, events = play([Text("x")], "fail")
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    assert events[-2]["message"] == "it broke"
    assert "error" not in events[-2]  # a nested error object would make the openai package raise


def test_a_response_that_never_began_can_be_cancelled_and_failed() -> None:
    for ending in ("cancel", "fail"):
        stream = new_stream()
        grammar.check(stream.accept() + end(stream, ending))


@pytest.mark.parametrize(
    "damage",
    [
        lambda events: events.pop(5),
        lambda events: events.append(events[-1] | {"sequence_number": len(events)}),
        lambda events: [event.update(output_index=1) for event in events if "output_index" in event],
        lambda events: events.pop(),
    ],
    ids=["an event is missing", "two terminal events", "wrong output_index", "no terminal event"],
)
def test_the_grammar_catches(damage: Any) -> None:
    _, events = play([Text("a"), Text("b")], "stop")
    events = copy.deepcopy(events)
    damage(events)
    with pytest.raises(grammar.Violation):
        grammar.check(events)


def test_a_search_on_the_server_is_a_call_and_what_it_found() -> None:
    found = ({"type": "function", "name": "late"},)
    events = fed(ToolSearch({"query": "mail"}, found))
    call, output = (event["item"] for event in events if event["type"] == "response.output_item.done")
    own = {"call_id": None, "execution": "server", "status": "completed"}
    assert call == {"id": "tsc_0a1b_0", "type": "tool_search_call", "arguments": {"query": "mail"}, **own}
    assert output == {"id": "tso_0a1b_1", "type": "tool_search_output", "tools": list(found), **own}


def test_a_call_of_a_local_tool_is_added_and_done_at_once() -> None:
    fields = {"action": {"commands": ["ls"]}, "environment": {"type": "local"}}
    added, done = fed(LocalCall(SHELL, fields))
    call = {"id": "sh_0a1b_0", "type": "shell_call", "call_id": "call_0a1b_0", **fields}
    assert (added["type"], added["item"]) == ("response.output_item.added", {**call, "status": "in_progress"})
    assert (done["type"], done["item"]) == ("response.output_item.done", {**call, "status": "completed"})


@pytest.mark.parametrize(("kind", "status"), [(SHELL, "incomplete"), (APPLY_PATCH, "in_progress")])
def test_a_call_of_a_local_tool_that_is_not_whole_makes_the_response_incomplete(kind: Any, status: str) -> None:
    stream = new_stream()
    stream.accept()
    stream.begin()
    stream.feed(LocalCall(kind, {}, whole=False))
    stream.finish(Finish(FinishReason.STOP), 1)
    assert stream.response["output"][0]["status"] == status
    assert stream.response["incomplete_details"] == {"reason": "malformed_call"}


def test_a_response_that_only_searched_ends_with_an_empty_message() -> None:
    stream = new_stream()
    stream.accept()
    stream.begin()
    stream.feed(ToolSearch({"query": "mail"}, ()))
    stream.finish(Finish(FinishReason.STOP), 1)
    assert [item["type"] for item in stream.response["output"]][2:] == ["message"]


def fed(delta: Any) -> list[Any]:
    """The events of one delta."""
    stream = new_stream()
    stream.accept()
    stream.begin()
    return stream.feed(delta)


def test_a_tool_search_is_added_and_done_at_once() -> None:
    stream = new_stream()
    stream.accept()
    stream.begin()
    added, done = stream.feed(ToolSearch({"query": "mail"}))
    call = {
        "id": "tsc_0a1b_0",
        "type": "tool_search_call",
        "call_id": "call_0a1b_0",
        "execution": "client",
        "arguments": {"query": "mail"},
    }
    assert (added["type"], added["item"]) == ("response.output_item.added", {**call, "status": "in_progress"})
    assert (done["type"], done["item"]) == ("response.output_item.done", {**call, "status": "completed"})
    assert stream.state is State.IDLE
