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


CODE: Json = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "code": "1 + 1",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": "data:image/png;base64,"}],
    "status": "completed",
}
SEARCH: Json = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "failed",
    "action": {"type": "search", "query": "x", "queries": ["x"], "sources": [{"type": "url", "url": "http://x"}]},
}
CALL: Json = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "docs",
    "name": "read",
    "arguments": "{}",
    "output": "text",
    "error": None,
    "approval_request_id": "mcpr_1",
    "status": "completed",
}
LIST: Json = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "docs",
    "tools": [{"name": "read", "input_schema": {}, "description": None, "annotations": {"readOnlyHint": True}}],
    "error": None,
}
REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "docs",
    "name": "write",
    "arguments": "{}",
}
RESPONSE: Json = {
    "type": "mcp_approval_response",
    "id": "mcpa_1",
    "approval_request_id": "mcpr_1",
    "approve": True,
    "reason": None,
}
TOOL: Json = {"type": "mcp", "server_label": "docs"}


@pytest.mark.parametrize(
    ("item", "model"),
    [
        (CODE, ResponseCodeInterpreterToolCall),
        (SEARCH, ResponseFunctionWebSearch),
        ({**SEARCH, "action": {"type": "open_page", "url": "http://x"}}, ResponseFunctionWebSearch),
        ({**SEARCH, "action": {"type": "find_in_page", "url": "http://x", "pattern": "y"}}, ResponseFunctionWebSearch),
        (CALL, McpCall),
        ({**CALL, "error": {"type": "mcp_tool_execution_error", "content": []}, "status": "failed"}, McpCall),
        (LIST, McpListTools),
        (REQUEST, McpApprovalRequest),
    ],
)
@pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_items_come_back_as_the_sdk_dumps_them(item: Json, model: Any, dump: Any) -> None:
    (kept,) = items(model.model_validate(item).model_dump(**dump))
    assert kept == item
    INPUT_ITEM.validate_python(kept)


def test_an_approval_response_is_stored() -> None:
    assert items(RESPONSE) == [RESPONSE]
    (kept,) = items(
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "no"}
    )
    assert kept == {**RESPONSE, "id": "mcpa_ab_in0", "approve": False, "reason": "no"}


@pytest.mark.parametrize("ending", ["stop", "length", "cancel"])
@pytest.mark.parametrize("sequence", [RICH, RICH[:14], RICH[:1], RICH[:6]])
def test_an_output_can_be_sent_back_as_it_is(sequence: list[Delta], ending: str) -> None:
    output = play(sequence, ending)[0].response["output"]
    dumped = [OUTPUT_ITEM.validate_python(item).model_dump(exclude_none=True) for item in output]
    kept = items(*dumped)
    assert [item["id"] for item in kept] == [item["id"] for item in output]
    assert [item.get("status") for item in kept] == [item.get("status") for item in output]


@pytest.mark.parametrize(
    ("item", "path", "code"),
    [
        ({"type": "code_interpreter_call"}, "input[0].code", "missing_required_parameter"),
        ({**CODE, "status": "searching"}, "input[0].status", "invalid_value"),
        ({**CODE, "outputs": [{"type": "file"}]}, "input[0].outputs[0].type", "invalid_value"),
        ({**CODE, "call": {}}, "input[0].call", "unknown_parameter"),
        ({**SEARCH, "action": {"type": "swim"}}, "input[0].action.type", "invalid_value"),
        ({**SEARCH, "action": {"type": "find_in_page"}}, "input[0].action.pattern", "missing_required_parameter"),
        ({**CALL, "arguments": {}}, "input[0].arguments", "invalid_type"),
        ({**CALL, "error": 5}, "input[0].error", "invalid_type"),
        ({**LIST, "tools": [{"name": "x"}]}, "input[0].tools[0].input_schema", "missing_required_parameter"),
        ({**LIST, "status": "completed"}, "input[0].status", "unknown_parameter"),
        ({**RESPONSE, "approve": "yes"}, "input[0].approve", "invalid_type"),
        (
            {"type": "mcp_approval_response", "approve": True},
            "input[0].approval_request_id",
            "missing_required_parameter",
        ),
    ],
)
def test_the_field_at_fault_is_named(item: Json, path: str, code: str) -> None:
    found = error(item)
    assert (found.param, found.code) == (path, code)


def refused(context: list[Json], sent: list[Json], tools: list[Json]) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        check_approvals(context, sent, tools)
    return caught.value.error


def test_only_approval_responses_need_the_context() -> None:
    assert has_approvals([REQUEST, RESPONSE])
    assert not has_approvals([REQUEST, CALL])


def test_an_approval_answers_a_request_of_the_context_or_of_the_input() -> None:
    check_approvals([REQUEST], [RESPONSE], [TOOL])
    check_approvals([], [REQUEST, RESPONSE], [TOOL])
    for context, sent in (([], [RESPONSE]), ([], [RESPONSE, REQUEST]), ([{**REQUEST, "id": "x"}], [RESPONSE])):
        found = refused(context, sent, [TOOL])
        assert (found.param, found.code) == ("input[0].approval_request_id", "invalid_value")
        assert "'mcpr_1'" in found.message


@pytest.mark.parametrize(
    ("context", "sent", "index"),
    [
        ([REQUEST, RESPONSE], [RESPONSE], 0),
        ([REQUEST, {**CALL, "approval_request_id": "mcpr_1"}], [RESPONSE], 0),
        ([REQUEST], [RESPONSE, RESPONSE], 1),
    ],
)
def test_an_approval_request_is_answered_once(context: list[Json], sent: list[Json], index: int) -> None:
    found = refused(context, sent, [TOOL])
    assert (found.param, found.code) == (f"input[{index}].approval_request_id", "approval_already_given")


def test_an_approved_call_needs_its_tool() -> None:
    assert refused([REQUEST], [RESPONSE], []).param == "input[0].approval_request_id"
    assert refused([REQUEST], [RESPONSE], [{**TOOL, "server_label": "x"}]).param == "input[0].approval_request_id"
    check_approvals([REQUEST], [{**RESPONSE, "approve": False}], [])


def test_an_approved_call_that_ran_needs_no_tool() -> None:
    check_approvals([], [REQUEST, RESPONSE, CALL], [])
