"""The steps of the event state machine for what the server runs itself.

Theory. The model writes a call; its item is closed, and pending: added, all its text there, not done. The end of the
turn starts every pending call (`interpreting`, `searching`); results come in any order and end their items; the end
of the response ends what is left as `incomplete`. Lists of an MCP server's tools are pending from the first.
"""

from __future__ import annotations

from typing import Any

from app.protocol.events.deltas import (
    Approval,
    CodeStart,
    CodeText,
    Listed,
    Listing,
    McpArguments,
    McpStart,
    ToolEnded,
    WebSearch,
)
from app.protocol.events.writer import IllegalInput, Writer
from app.protocol.types import Json

UNANSWERED = "The response ended before the server had listed its tools."
"""The `error` of a list that was cut."""

_STARTED = {"code_interpreter_call": "interpreting", "web_search_call": "searching"}
"""The status, and the event, of a call that runs. An MCP call has none."""

_CALLS = (*_STARTED, "mcp_call")

_TOLD = {
    ("code_interpreter_call", True): "response.code_interpreter_call.completed",
    ("web_search_call", True): "response.web_search_call.completed",
    ("mcp_call", True): "response.mcp_call.completed",
    ("mcp_call", False): "response.mcp_call.failed",
}
"""The event of a call that ended, by whether it went well; the others have none."""


# -- the model's ---------------------------------------------------------------------------------------------


def open_code(writer: Writer, _: CodeStart) -> None:
    container = f"cntr_{writer.suffix}"
    writer.add_item("ci", type="code_interpreter_call", code="", container_id=container, outputs=None)
    writer.emit_item("response.code_interpreter_call.in_progress")


def open_mcp(writer: Writer, delta: McpStart) -> None:
    writer.add_item(
        "mcp",
        type="mcp_call",
        server_label=delta.server_label,
        name=delta.name,
        arguments="",
        output=None,
        error=None,
        approval_request_id=delta.approval_request_id,
    )
    writer.emit_item("response.mcp_call.in_progress")


def code(writer: Writer, delta: CodeText) -> None:
    writer.add_piece(delta.text, "response.code_interpreter_call_code.delta")


def mcp_arguments(writer: Writer, delta: McpArguments) -> None:
    writer.add_piece(delta.text, "response.mcp_call_arguments.delta")


def close_code(writer: Writer, _: Any) -> None:
    writer.emit_item("response.code_interpreter_call_code.done", code=writer.join("code"))
    writer.pending.append(writer.last)


def close_mcp(writer: Writer, _: Any) -> None:
    writer.emit_item("response.mcp_call_arguments.done", arguments=writer.join("arguments"))
    writer.pending.append(writer.last)


def web_search(writer: Writer, delta: WebSearch) -> None:
    writer.add_item("ws", type="web_search_call", action=delta.action)
    writer.emit_item("response.web_search_call.in_progress")
    writer.pending.append(writer.last)


def approval(writer: Writer, delta: Approval) -> None:
    writer.add_plain(
        "mcpr",
        type="mcp_approval_request",
        server_label=delta.server_label,
        name=delta.name,
        arguments=delta.arguments,
    )
    writer.end_item(writer.last)


# -- the server's --------------------------------------------------------------------------------------------


def listing(writer: Writer, delta: Listing) -> None:
    writer.add_plain("mcpl", type="mcp_list_tools", server_label=delta.server_label, tools=[], error=None)
    writer.emit_item("response.mcp_list_tools.in_progress")
    writer.pending.append(writer.last)


def listed(writer: Writer, delta: Listed) -> None:
    item = _pending(writer, delta.index, ("mcp_list_tools",))
    writer.pending.remove(delta.index)
    item |= {"tools": list(delta.tools), "error": delta.error}
    how = "completed" if delta.error is None else "failed"
    writer.emit_item(f"response.mcp_list_tools.{how}", delta.index)
    writer.end_item(delta.index)


def start_calls(writer: Writer, _: Any) -> None:
    """The calls of the turn that ended begin to run."""
    for index in writer.pending:
        item = writer.output[index]
        status = _STARTED.get(item["type"])
        if status is not None and item["status"] == "in_progress":
            item["status"] = status
            writer.emit_item(f"response.{item['type']}.{status}", index)


def tool_ended(writer: Writer, delta: ToolEnded) -> None:
    item = _pending(writer, delta.index, _CALLS)
    if item["status"] != _STARTED.get(item["type"], "in_progress"):
        raise IllegalInput(f"the call at {delta.index} has not been started")
    writer.pending.remove(delta.index)
    item |= {**delta.fields, "status": "completed" if delta.ok else "failed"}
    if (told := _TOLD.get((item["type"], delta.ok))) is not None:
        writer.emit_item(told, delta.index)
    writer.end_item(delta.index)


def _pending(writer: Writer, index: int, kinds: tuple[str, ...]) -> Json:
    """The pending item at `index`. Raises IllegalInput where there is none of these types."""
    if index not in writer.pending or writer.output[index]["type"] not in kinds:
        raise IllegalInput(f"no {' or '.join(kinds)} is pending at {index}")
    return writer.output[index]


def close_pending(writer: Writer, _: Any) -> None:
    """The response ends: so does what nobody has answered."""
    for index in writer.pending:
        item = writer.output[index]
        if item["type"] == "mcp_list_tools":
            item["error"] = UNANSWERED
            writer.emit_item("response.mcp_list_tools.failed", index)
        else:
            item["status"] = "incomplete"
        writer.end_item(index)
    writer.pending.clear()
