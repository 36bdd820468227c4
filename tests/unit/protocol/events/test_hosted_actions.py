"""Calls of hosted tools in the event machine: which events they make, and when."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.events import frames
from app.protocol.events.deltas import (
    Approval,
    CodeStart,
    CodeText,
    Delta,
    Finish,
    FinishReason,
    Listed,
    Listing,
    McpArguments,
    McpStart,
    Text,
    ToolEnded,
    TurnEnd,
    WholeCall,
)
from app.protocol.events.hosted_actions import UNANSWERED
from app.protocol.events.machine import IllegalInput
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.response import usage_object
from app.protocol.usage import Usage
from tests.support import grammar
from tests.support.deltas import fed, play

Event = dict[str, Any]

SEARCH = {"type": "search", "query": "x"}


def kinds(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_web_search_is_searching_from_the_end_of_the_turn_to_its_result() -> None:
    stream, _ = fed()
    assert kinds(stream.feed(WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": SEARCH}))) == [
        "output_item.added",
        "web_search_call.in_progress",
    ]
    assert stream.pending == (0,)
    assert kinds(stream.feed(TurnEnd())) == ["web_search_call.searching"]
    assert stream.response["output"][0]["status"] == "searching"
    done = stream.feed(ToolEnded(0, True, {"action": {**SEARCH, "sources": []}}))
    assert kinds(done) == ["web_search_call.completed", "output_item.done"]
    assert done[-1]["item"]["action"]["sources"] == []
    assert stream.pending == ()


@pytest.mark.parametrize(("ok", "end_events"), [(True, ["mcp_call.completed"]), (False, ["mcp_call.failed"])])
def test_an_mcp_call_has_an_event_for_success_and_for_failure(ok: bool, end_events: list[str]) -> None:
    stream, _ = fed(McpStart("docs", "read", "mcpr_1"), McpArguments('{"a":'), McpArguments("1}"), TurnEnd())
    assert kinds(stream.feed(ToolEnded(0, ok, {"output": "x"}))) == [*end_events, "output_item.done"]
    assert stream.response["output"][0] == {
        "id": "mcp_0a1b_0",
        "type": "mcp_call",
        "server_label": "docs",
        "name": "read",
        "arguments": '{"a":1}',
        "output": "x",
        "error": None,
        "approval_request_id": "mcpr_1",
        "status": "completed" if ok else "failed",
    }


def test_an_approval_request_is_added_and_done_and_has_no_status() -> None:
    stream, _ = fed()
    added, done = stream.feed(Approval("docs", "write", "{}"))
    assert added["item"] == done["item"] == stream.response["output"][0]
    assert added["item"] == {
        "id": "mcpr_0a1b_0",
        "type": "mcp_approval_request",
        "server_label": "docs",
        "name": "write",
        "arguments": "{}",
    }
    assert stream.pending == ()


@pytest.mark.parametrize(
    ("sequence", "delta"),
    [
        ([], ToolEnded(0, True, {})),
        ([CodeStart("python"), CodeText("1"), TurnEnd()], ToolEnded(1, True, {})),
        ([CodeStart("python"), CodeText("1"), TurnEnd()], ToolEnded(-1, True, {})),
        ([CodeStart("python"), CodeText("1"), TurnEnd()], Listed(0, ())),
        ([CodeStart("python"), CodeText("1"), Approval("d", "f", "{}")], ToolEnded(0, True, {})),
        ([Listing("docs")], ToolEnded(0, True, {})),
        ([CodeStart("python"), CodeText("1"), TurnEnd(), ToolEnded(0, True, {})], ToolEnded(0, True, {})),
        ([Text("a"), TurnEnd()], ToolEnded(0, True, {})),
    ],
    ids=["nothing", "beyond", "negative", "not a list", "not started", "not a call", "twice", "a message"],
)
def test_a_result_for_an_item_that_is_not_pending_is_illegal_and_changes_nothing(
    sequence: list[Delta], delta: Delta
) -> None:
    stream, _ = fed(*sequence)
    before = frames.encode({"type": "x", **stream.response}), stream.next_sequence, stream.pending
    with pytest.raises(IllegalInput):
        stream.feed(delta)
    assert (frames.encode({"type": "x", **stream.response}), stream.next_sequence, stream.pending) == before


def test_the_end_of_a_turn_starts_each_call_once() -> None:
    stream, _ = fed(CodeStart("python"), CodeText("1"), TurnEnd())
    assert stream.feed(TurnEnd()) == []
    stream.feed(WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": SEARCH}))
    assert [event["output_index"] for event in stream.feed(TurnEnd())] == [1]


@pytest.mark.parametrize("ending", ["stop", "length", "fail", "cancel"])
def test_the_end_of_a_response_ends_pending_items_as_incomplete(ending: str) -> None:
    pending: list[Delta] = [
        Listing("docs"),
        McpStart("wiki", "read"),
        WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": SEARCH}),
        CodeStart("python"),
        CodeText("1 +"),
    ]
    stream, events = play(pending, ending)
    grammar.check(events)
    first, *rest = (item for item in stream.response["output"] if item["type"] != "message")
    assert (first["tools"], first["error"]) == ([], UNANSWERED)
    assert [item["status"] for item in rest] == ["incomplete"] * 3
    assert rest[-1]["code"] == "1 +"
    assert stream.pending == ()


def test_usage_is_the_sum_of_the_turns_and_several_have_details() -> None:
    stream, _ = fed()
    usage = Usage.of([Usage(3, 1, 5, 2), Usage(12, 8, 4, 0, 4)])
    assert stream.finish(Finish(FinishReason.STOP, usage), 1)[-1]["response"]["usage"] == {
        "input_tokens": 15,
        "input_tokens_details": {
            "cached_tokens": 9,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [3, 12],
            "cached_tokens_per_turn": [1, 8],
        },
        "output_tokens": 9,
        "output_tokens_details": {
            "reasoning_tokens": 2,
            "tool_output_tokens": 4,
            "output_tokens_per_turn": [5, 4],
            "tool_output_tokens_per_turn": [0, 4],
        },
        "total_tokens": 24,
    }
    assert usage_object(Usage.of([Usage(3, 1, 5, 2)])) == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 8,
    }
