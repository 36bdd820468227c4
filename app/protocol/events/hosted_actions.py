"""The actions of the event table for hosted tools: their calls, and the lists of tools that MCP servers give.

The model writes a call. Its item is then closed but not done: it is pending. The end of the turn starts every pending
call. Results arrive in any order and end their items; the end of the response ends the others as `incomplete`. A
list of tools is pending from its first event. What differs between kinds of tools is in app/protocol/hosted_kinds.py.
"""

from __future__ import annotations

from collections.abc import Collection
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
    WholeCall,
)
from app.protocol.events.writer import IllegalInput, Writer
from app.protocol.hosted_kinds import CODE_INTERPRETER, KIND_OF_CALL, MCP, HostedToolKind
from app.protocol.item_types import APPROVAL_REQUEST, MCP_LIST_TOOLS
from app.protocol.types import Json

UNANSWERED = "The response ended before the server had listed its tools."
"""The `error` of a list of tools that never arrived."""


# -- calls, as the model writes them ---------------------------------------------------------------------------


def open_code(writer: Writer, _: CodeStart) -> None:
    _open_call(writer, CODE_INTERPRETER, code="", container_id=f"cntr_{writer.id_suffix}", outputs=None)


def open_mcp(writer: Writer, delta: McpStart) -> None:
    _open_call(
        writer,
        MCP,
        server_label=delta.server_label,
        name=delta.name,
        arguments="",
        output=None,
        error=None,
        approval_request_id=delta.approval_request_id,
    )


def add_call_text(writer: Writer, delta: CodeText | McpArguments) -> None:
    writer.add_piece(delta.text, f"{_text_event(writer)}.delta")


def close_call(writer: Writer, _: Any) -> None:
    """The model has written all of the call's text."""
    field = KIND_OF_CALL[writer.item["type"]].text_field or ""
    writer.emit_item(f"{_text_event(writer)}.done", writer.last_index, **{field: writer.join_pieces(field)})
    writer.pending.append(writer.last_index)


def add_whole_call(writer: Writer, delta: WholeCall) -> None:
    _open_call(writer, delta.kind, **delta.fields)
    writer.pending.append(writer.last_index)


def request_approval(writer: Writer, delta: Approval) -> None:
    writer.add_item_without_status(
        "mcpr",
        type=APPROVAL_REQUEST,
        server_label=delta.server_label,
        name=delta.name,
        arguments=delta.arguments,
    )
    writer.end_item(writer.last_index)


def _open_call(writer: Writer, kind: HostedToolKind, **fields: Any) -> None:
    writer.add_item(kind.id_prefix, type=kind.call_type, **fields)
    writer.emit_item(f"response.{kind.call_type}.in_progress")


def _text_event(writer: Writer) -> str:
    """The name of the events about the open call's text, without `.delta` or `.done`."""
    kind = KIND_OF_CALL[writer.item["type"]]
    return f"response.{kind.call_type}_{kind.text_field}"


# -- calls and lists, as the server runs them ------------------------------------------------------------------


def start_list(writer: Writer, delta: Listing) -> None:
    writer.add_item_without_status("mcpl", type=MCP_LIST_TOOLS, server_label=delta.server_label, tools=[], error=None)
    writer.emit_item(f"response.{MCP_LIST_TOOLS}.in_progress")
    writer.pending.append(writer.last_index)


def end_list(writer: Writer, delta: Listed) -> None:
    item = _pending_item(writer, delta.index, (MCP_LIST_TOOLS,))
    writer.pending.remove(delta.index)
    item |= {"tools": list(delta.tools), "error": delta.error}
    end = "completed" if delta.error is None else "failed"
    writer.emit_item(f"response.{MCP_LIST_TOOLS}.{end}", delta.index)
    writer.end_item(delta.index)


def start_calls(writer: Writer, _: Any) -> None:
    """The turn has ended: its calls begin to run."""
    for index in writer.pending:
        item = writer.output[index]
        kind = KIND_OF_CALL.get(item["type"])
        if kind is not None and kind.running_status is not None and item["status"] == "in_progress":
            item["status"] = kind.running_status
            writer.emit_item(f"response.{kind.call_type}.{kind.running_status}", index)


def end_call(writer: Writer, delta: ToolEnded) -> None:
    item = _pending_item(writer, delta.index, KIND_OF_CALL)
    kind = KIND_OF_CALL[item["type"]]
    if item["status"] != (kind.running_status or "in_progress"):
        raise IllegalInput(f"the call at index {delta.index} has not been started")
    writer.pending.remove(delta.index)
    item |= {**delta.fields, "status": "completed" if delta.ok else "failed"}
    if delta.ok or kind.has_failed_event:
        writer.emit_item(f"response.{kind.call_type}.{item['status']}", delta.index)
    writer.end_item(delta.index)


def end_pending(writer: Writer, _: Any) -> None:
    """The response ends: so does every item that still waits."""
    for index in writer.pending:
        item = writer.output[index]
        if item["type"] == MCP_LIST_TOOLS:
            item["error"] = UNANSWERED
            writer.emit_item(f"response.{MCP_LIST_TOOLS}.failed", index)
        else:
            item["status"] = "incomplete"
        writer.end_item(index)
    writer.pending.clear()


def _pending_item(writer: Writer, index: int, types: Collection[str]) -> Json:
    """Returns the pending item at `index`. Raises IllegalInput if there is none of these types."""
    if index not in writer.pending or writer.output[index]["type"] not in types:
        raise IllegalInput(f"no {' or '.join(types)} is pending at index {index}")
    return writer.output[index]
