"""`input`: its types of items, and outputs without their calls. What is stored of each item: test_accepted.py."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseInputItem

from app.protocol.errors import InvalidRequest
from app.protocol.item_types import COMPACTION_TRIGGER, ITEM_REFERENCE, UNSUPPORTED_ITEMS
from app.protocol.requests.bodies.consistency import outputs_without_call
from app.protocol.requests.bodies.conversation import CreateItems
from app.protocol.requests.validation import validate
from tests.support.refusals import CALL, OUTPUT, PATCH_OUTPUT, SHELL_CALL, SHELL_OUTPUT, TRIGGER
from tests.support.requests import parse_request
from tests.support.sdk import kinds_of

Json = dict[str, Any]

CUSTOM_OUTPUT: Json = {"type": "custom_tool_call_output", "call_id": "call_1", "output": ""}
SEARCHED: Json = {"execution": "server", "call_id": None, "status": "completed"}


def items(sent: Any) -> list[Json]:
    """The items of `input`, as the store keeps them."""
    kept: list[Json] = parse_request(orjson.dumps({"model": "m", "input": sent})).stored("resp_ab", {})["input"]
    return kept


def test_the_list_of_item_types_is_that_of_the_openai_package() -> None:
    ours = {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
    hosted = {"code_interpreter_call", "web_search_call", "mcp_call", "mcp_list_tools"}
    approvals = {"mcp_approval_request", "mcp_approval_response"}
    loaded = {"tool_search_call", "tool_search_output", "additional_tools"}
    local = {f"{kind}_call{end}" for kind in ("shell", "apply_patch", "local_shell") for end in ("", "_output")}
    others = {"reasoning", "compaction", COMPACTION_TRIGGER, ITEM_REFERENCE}
    assert kinds_of(ResponseInputItem) == UNSUPPORTED_ITEMS | ours | hosted | approvals | loaded | local | others


@pytest.mark.parametrize(
    ("sent", "missing"),
    [
        ([CALL, OUTPUT], {}),
        ([OUTPUT], {"call_1": 0}),
        ([OUTPUT, CALL], {"call_1": 0}),
        ([CALL, {**OUTPUT, "call_id": "call_2"}], {"call_2": 1}),
        ([CALL, CUSTOM_OUTPUT], {"call_1": 1}),
        ([{"type": "function_call_output", "name": "wake_up", "output": "It is nine."}], {}),
        ([SHELL_CALL, SHELL_OUTPUT], {}),
        ([SHELL_OUTPUT], {"c": 0}),
        ([SHELL_CALL, {**PATCH_OUTPUT, "call_id": "c"}], {"c": 1}),
        ([{"type": "tool_search_output", "id": "tso_7", "tools": [], **SEARCHED}], {}),
    ],
)
def test_an_output_follows_a_call_of_its_own_kind(sent: list[Json], missing: dict[str, int]) -> None:
    assert outputs_without_call(items(sent)) == missing


def test_an_item_of_another_program_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest) as caught:
        items([{"type": "acme:note", "text": "x"}])
    message = caught.value.error.message
    assert message.startswith("'input[0].type': 'acme:note' is a type of another program's own")
    assert "Leave the item out" in message


def test_conversations_take_no_trigger() -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate(CreateItems, {"items": [TRIGGER]})
    assert caught.value.error.param == "items[0].type"
