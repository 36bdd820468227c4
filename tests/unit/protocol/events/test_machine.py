"""The event machine, tested against its table, a grammar of events and the openai package's own reader."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
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
from tests.support.deltas import deltas, end, endings, fed, new_stream, play, summaries
from tests.support.sdk import mismatches

SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

SAID: list[Delta] = [
    Text("a"),
    CallStart("f"),
    CallCut(),
    CallArguments("{}"),
    Refusal("a"),
    Annotation({"type": "file_path"}),
    CompactionStart(),
    Compacting(),
    Compacted("lh1_x"),
    CustomStart("f"),
    CustomInput("x"),
    CodeStart("python"),
    CodeText("1"),
    McpStart("docs", "f"),
    McpArguments("{}"),
    WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": {"type": "search", "query": "x"}}),
    ToolSearch({"query": "x"}),
    LocalCall(SHELL, {"action": {"commands": ["ls"]}}),
    Approval("docs", "f", "{}"),
    Listing("docs"),
    Listed(0, ()),
    TurnEnd(),
    ToolEnded(1, True, {"outputs": None}),
]
INPUTS: dict[Key, Any] = {
    **{type(delta): lambda stream, delta=delta: stream.feed(delta) for delta in SAID},
    Input.ACCEPT: ResponseStream.accept,
    Input.BEGIN: ResponseStream.begin,
    Input.OTHER_TEXT: lambda stream: stream.feed(Text("a", phase="commentary")),
    Reasoning: lambda stream: stream._process(Reasoning, Reasoning("a")),
    Input.SUMMARIZED: lambda stream: stream._process(Input.SUMMARIZED, Reasoning("a")),
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
def test_every_cell_leads_to_its_state_and_a_missing_cell_changes_nothing(state: State) -> None:
    for given_input, feed in INPUTS.items():
        stream = at(state)
        before = copy.deepcopy((stream.response, stream.next_sequence))
        if given_input in TABLE[state]:
            events = feed(stream)
            assert stream.state is TABLE[state][given_input][1], given_input
            assert [event["sequence_number"] for event in events] == list(range(before[1], stream.next_sequence))
        else:
            with pytest.raises(IllegalInput, match=state.value):
                feed(stream)
            assert stream.state is state, given_input
            assert (stream.response, stream.next_sequence) == before


def test_the_table_knows_every_state_and_every_input() -> None:
    assert set(TABLE) == set(State)
    kinds = {kind for kind in vars(all_deltas).values() if isinstance(kind, type) and issubclass(kind, Delta)}
    assert {key for row in TABLE.values() for key in row} == {*Input, *kinds} - {Delta, Piece} == set(INPUTS)


@given(deltas(), endings, summaries)
def test_every_legal_sequence_keeps_the_grammar_and_folds_to_its_response(
    sequence: list[Delta], ending: str, summary: str | None
) -> None:
    stream, events = play(sequence, ending, summary=summary)
    grammar.check(events)
    snapshot = fold(frames.decode(frames.encode_all(events)))
    shown = {"error": {"code": "invalid_prompt", "message": "The response was cancelled."}}
    assert snapshot.response == stream.response | (shown if ending == "cancel" else {})
    assert snapshot.next_sequence == len(events)
    assert events[-1]["response"] == snapshot.response


@settings(max_examples=50)
@given(deltas(), endings, summaries)
def test_every_event_is_an_event_of_the_openai_package(sequence: list[Delta], ending: str, summary: str | None) -> None:
    for event in play(sequence, ending, summary=summary)[1]:
        found = mismatches(ResponseStreamEvent, event)
        assert set(found.values()) <= {"malformed_call", "unfinished_reasoning"}


@settings(max_examples=50)
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


class NotToCopy(str):
    """Text that must not be added to other text one piece at a time: each time would copy all of it."""

    def __radd__(self, text: str) -> str:
        raise AssertionError(f"{len(text)} characters are copied")


def test_folding_copies_a_text_once_and_not_at_each_delta() -> None:
    _, events = fed(*[Reasoning("Hm. ")] * 3, *[Text("word ")] * 3)
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
    stream, events = fed(*sequence[:cut], stream=new_stream(summary=summary))
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
    stream, events = fed(Text("a"))
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
    stream, events = play([CompactionStart(), Compacting(), Compacted("lh1_x"), Text("a")], "stop")
    item = {"id": "cmp_0a1b_0", "type": "compaction", "encrypted_content": "lh1_x", "status": "completed"}
    assert stream.response["output"][0] == item
    assert events[3]["item"] == item | {"encrypted_content": "", "status": "in_progress"}
    compacting = {"type": "response.compaction.compacting", "item_id": "cmp_0a1b_0"}
    assert events[4] == {**compacting, "sequence_number": 4, "output_index": 0}
    done = {"type": "response.output_item.done", "item": item}
    assert events[5] == {**done, "sequence_number": 5, "output_index": 0}


@pytest.mark.parametrize("ending", ["fail", "cancel"])
def test_a_compaction_that_is_cut_holds_nothing(ending: str) -> None:
    (item,) = play([CompactionStart(), Compacting()], ending)[0].response["output"]
    assert (item["status"], item["encrypted_content"]) == ("incomplete", "")


def test_an_event_never_changes_after_it_was_made() -> None:
    stream, events = fed(Text("one"))
    before = copy.deepcopy(events)
    stream.feed(Text(" two"))
    stream.finish(Finish(FinishReason.STOP), 5)
    assert events == before


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
    stream, _ = fed(*said, stream=ResponseStream({**new_stream().response, **asked}))
    stream.finish(Finish(FinishReason.STOP), 5)
    details = {"reason": "unfinished_reasoning"} if incomplete else None
    assert stream.response["incomplete_details"] == details
    assert stream.response["output"][0]["status"] == ("incomplete" if incomplete else "completed")


def test_only_a_completed_response_has_completed_at() -> None:
    assert play([Text("x")], "stop")[0].response["completed_at"] == 1_700_000_009
    assert play([Text("x")], "cancel")[0].response["completed_at"] is None


def test_a_response_that_never_began_can_be_cancelled_and_failed() -> None:
    for ending in ("cancel", "fail"):
        stream = new_stream()
        grammar.check(stream.accept() + end(stream, ending))


CODE: list[Delta] = [CodeStart("p"), CodeText("1"), TurnEnd(), ToolEnded(0, True, {})]
MCP: list[Delta] = [McpStart("d", "f"), McpArguments("{}"), TurnEnd(), ToolEnded(0, False, {})]
LEFT_OUT: list[tuple[list[Delta], str]] = [
    *((CODE, f"code_interpreter_call.{name}") for name in ("interpreting", "completed")),
    *((MCP, name) for name in ("mcp_call_arguments.done", "mcp_call.failed", "output_item.done")),
    ([Listing("d"), Listed(0, ())], "mcp_list_tools.in_progress"),
    ([Approval("d", "f", "{}")], "output_item.done"),
    ([Text("a")], "content_part.added"),
    ([Text("a")], "completed"),
    ([Reasoning("a"), Text("b")], "reasoning_summary_text.done"),
]


def test_the_grammar_catches_what_is_missing() -> None:
    for said, missing in LEFT_OUT:
        events = play(said, "stop", summary="auto")[1]
        place = next(place for place, event in enumerate(events) if event["type"] == f"response.{missing}")
        kept = [*events[:place], *events[place + 1 :]]
        with pytest.raises(grammar.Violation):
            grammar.check([{**event, "sequence_number": number} for number, event in enumerate(kept)])


def shown(delta: Delta) -> tuple[ResponseStream, list[Json]]:
    """A stream, and the items of the events of one delta."""
    stream, (_, _, _, *events) = fed(delta)
    assert {event["type"] for event in events} == {"response.output_item.added", "response.output_item.done"}
    return stream, [event["item"] for event in events]


SEARCH: Json = {"type": "tool_search_call", "arguments": {"query": "mail"}, "id": "tsc_0a1b_0"}
LS: Json = {"action": {"commands": ["ls"]}, "environment": {"type": "local"}}


@pytest.mark.parametrize(
    ("delta", "item"),
    [
        (ToolSearch({"query": "mail"}), {**SEARCH, "call_id": "call_0a1b_0", "execution": "client"}),
        (LocalCall(SHELL, LS), {"id": "sh_0a1b_0", "type": "shell_call", "call_id": "call_0a1b_0", **LS}),
    ],
)
def test_a_search_or_a_local_call_is_added_and_done_at_once(delta: Delta, item: Json) -> None:
    stream, items = shown(delta)
    assert items == [{**item, "status": "in_progress"}, {**item, "status": "completed"}]
    assert stream.state is State.IDLE


def test_a_search_on_the_server_is_a_call_and_what_it_found() -> None:
    found = ({"type": "function", "name": "late"},)
    stream, (_, call, _, output) = shown(ToolSearch({"query": "mail"}, found))
    own = {"call_id": None, "execution": "server", "status": "completed"}
    assert call == {**SEARCH, **own}
    assert output == {"id": "tso_0a1b_1", "type": "tool_search_output", "tools": list(found), **own}
    stream.finish(Finish(FinishReason.STOP), 1)
    assert [item["type"] for item in stream.response["output"]][2:] == ["message"]


@pytest.mark.parametrize(("kind", "status"), [(SHELL, "incomplete"), (APPLY_PATCH, "in_progress")])
def test_a_call_of_a_local_tool_that_is_not_whole_makes_the_response_incomplete(kind: Any, status: str) -> None:
    stream, _ = shown(LocalCall(kind, {}, whole=False))
    stream.finish(Finish(FinishReason.STOP), 1)
    assert stream.response["output"][0]["status"] == status
    assert stream.response["incomplete_details"] == {"reason": "malformed_call"}
