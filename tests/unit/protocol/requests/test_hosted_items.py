"""Items of hosted tools, as clients send them back, and answers to approval requests."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import (
    ResponseCodeInterpreterToolCall,
    ResponseFunctionWebSearch,
    ResponseInputItemParam,
    ResponseOutputItem,
)
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools
from pydantic import TypeAdapter

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.events.deltas import Delta
from app.responses.create.approvals import check_approvals, has_approvals
from tests.support.deltas import play
from tests.support.refusals import APPROVAL, CODE_CALL, MCP_CALL, MCP_LIST, WEB_CALL
from tests.support.requests import parse_request
from tests.unit.protocol.events.test_hosted_actions import RICH

Json = dict[str, Any]
OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
INPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)


def items(*sent: Json) -> list[Json]:
    body = orjson.dumps({"model": "m", "input": list(sent)})
    kept: list[Json] = parse_request(body).stored("resp_ab", {})["input"]
    return kept


def error(*sent: Json) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        items(*sent)
    return caught.value.error


REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "docs",
    "name": "write",
    "arguments": "{}",
}
TOOL: Json = {"type": "mcp", "server_label": "docs"}


@pytest.mark.parametrize(
    ("item", "model"),
    [
        (CODE_CALL, ResponseCodeInterpreterToolCall),
        (WEB_CALL, ResponseFunctionWebSearch),
        ({**WEB_CALL, "action": {"type": "open_page", "url": "http://x"}}, ResponseFunctionWebSearch),
        (
            {**WEB_CALL, "action": {"type": "find_in_page", "url": "http://x", "pattern": "y"}},
            ResponseFunctionWebSearch,
        ),
        (MCP_CALL, McpCall),
        ({**MCP_CALL, "error": {"type": "mcp_tool_execution_error", "content": []}, "status": "failed"}, McpCall),
        (MCP_LIST, McpListTools),
        (REQUEST, McpApprovalRequest),
    ],
)
@pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_items_come_back_as_the_sdk_dumps_them(item: Json, model: Any, dump: Any) -> None:
    (kept,) = items(model.model_validate(item).model_dump(**dump))
    assert kept == item
    INPUT_ITEM.validate_python(kept)


def test_an_approval_response_is_stored() -> None:
    assert items(APPROVAL) == [APPROVAL]
    (kept,) = items(
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "no"}
    )
    assert kept == {**APPROVAL, "id": "mcpa_ab_in0", "approve": False, "reason": "no"}


@pytest.mark.parametrize("ending", ["stop", "length", "cancel"])
@pytest.mark.parametrize("sequence", [RICH, RICH[:14], RICH[:1], RICH[:6]])
def test_an_output_can_be_sent_back_as_it_is(sequence: list[Delta], ending: str) -> None:
    output = play(sequence, ending)[0].response["output"]
    dumped = [OUTPUT_ITEM.validate_python(item).model_dump(exclude_none=True) for item in output]
    kept = items(*dumped)
    assert [item["id"] for item in kept] == [item["id"] for item in output]
    assert [item.get("status") for item in kept] == [item.get("status") for item in output]


def refused(context: list[Json], sent: list[Json], tools: list[Json]) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        check_approvals(context, sent, tools)
    return caught.value.error


def test_only_approval_responses_need_the_context() -> None:
    assert has_approvals([REQUEST, APPROVAL])
    assert not has_approvals([REQUEST, MCP_CALL])


def test_an_approval_answers_a_request_of_the_context_or_of_the_input() -> None:
    check_approvals([REQUEST], [APPROVAL], [TOOL])
    check_approvals([], [REQUEST, APPROVAL], [TOOL])
    for context, sent in (([], [APPROVAL]), ([], [APPROVAL, REQUEST]), ([{**REQUEST, "id": "x"}], [APPROVAL])):
        found = refused(context, sent, [TOOL])
        assert (found.param, found.code) == ("input[0].approval_request_id", "invalid_value")
        assert "'mcpr_1'" in found.message


@pytest.mark.parametrize(
    ("context", "sent", "index"),
    [
        ([REQUEST, APPROVAL], [APPROVAL], 0),
        ([REQUEST, {**MCP_CALL, "approval_request_id": "mcpr_1"}], [APPROVAL], 0),
        ([REQUEST], [APPROVAL, APPROVAL], 1),
    ],
)
def test_an_approval_request_is_answered_once(context: list[Json], sent: list[Json], index: int) -> None:
    found = refused(context, sent, [TOOL])
    assert (found.param, found.code) == (f"input[{index}].approval_request_id", "approval_already_given")


def test_an_approved_call_needs_its_tool() -> None:
    assert refused([REQUEST], [APPROVAL], []).param == "input[0].approval_request_id"
    assert refused([REQUEST], [APPROVAL], [{**TOOL, "server_label": "x"}]).param == "input[0].approval_request_id"
    check_approvals([REQUEST], [{**APPROVAL, "approve": False}], [])


def test_an_approved_call_that_ran_needs_no_tool() -> None:
    check_approvals([], [REQUEST, APPROVAL, MCP_CALL], [])
