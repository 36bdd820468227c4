"""The actions of the event table for everything but hosted tools (hosted_actions.py).

An action writes to the response and makes the events that say so. Its second argument is the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.protocol.events.deltas import (
    Annotation,
    CallArguments,
    CallStart,
    Compacted,
    Compacting,
    CompactionStart,
    CustomInput,
    CustomStart,
    Finish,
    LocalCall,
    Reasoning,
    Refusal,
    Text,
    ToolSearch,
)
from app.protocol.events.writer import Writer
from app.protocol.item_types import SERVER, TOOL_SEARCH_CALL, TOOL_SEARCH_OUTPUT
from app.protocol.response import code_of, error_object, usage_object
from app.protocol.status import Status
from app.protocol.types import Json

Action = Callable[[Writer, Any], None]

_CANCELLED = error_object("invalid_prompt", "The response was cancelled.")
"""Clients know no `response.cancelled`, and the code is the one after which Codex does not send the request again."""

# -- the response ----------------------------------------------------------------------------------------------


def create(writer: Writer, _: None) -> None:
    writer.emit_response("created")


def queue(writer: Writer, _: None) -> None:
    writer.emit_response("queued")


def begin(writer: Writer, _: None) -> None:
    writer.response["status"] = Status.IN_PROGRESS.value
    writer.emit_response("in_progress")


def finish(writer: Writer, argument: tuple[Finish, int]) -> None:
    end, finished_at = argument
    status = Status.COMPLETED
    if end.incomplete is not None:
        status = Status.INCOMPLETE
        writer.response["incomplete_details"] = {"reason": end.incomplete}
    else:
        writer.response["completed_at"] = finished_at
    writer.response |= {"status": status.value, "usage": usage_object(end.usage), **end.messages}
    writer.emit_response(status.value)


def fail(writer: Writer, error: Json) -> None:
    writer.response |= {"status": Status.FAILED.value, "error": error}
    writer.emit("error", code=code_of(error), message=error["message"], param=None)
    writer.emit_response("failed")


def cancel(writer: Writer, _: None) -> None:
    writer.response["status"] = Status.CANCELLED.value
    writer.emit("response.failed", response={**writer.response, "output": list(writer.output), "error": _CANCELLED})


# -- messages and reasoning ------------------------------------------------------------------------------------


def open_message(writer: Writer, delta: Text | Refusal | tuple[Finish, int]) -> None:
    phase = {"phase": delta.phase} if isinstance(delta, Text) and delta.phase else {}
    writer.add_item("msg", type="message", role="assistant", content=[], **phase)


def open_text(writer: Writer, _: Any) -> None:
    writer.logprobs = []
    writer.add_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})


def open_refusal(writer: Writer, _: Refusal) -> None:
    writer.add_part({"type": "refusal", "refusal": ""})


def open_reasoning(writer: Writer, _: Reasoning) -> None:
    writer.add_item("rs", type="reasoning", summary=[], content=[])
    writer.add_part({"type": "reasoning_text", "text": ""})


def open_summary(writer: Writer, _: Reasoning) -> None:
    writer.item["summary"].append({"type": "summary_text", "text": ""})
    writer.emit_item("response.reasoning_summary_part.added", summary_index=0, part=dict(writer.item["summary"][0]))


def add_text(writer: Writer, delta: Text) -> None:
    writer.pieces.append(delta.text)
    writer.logprobs += delta.logprobs
    writer.emit_part("response.output_text.delta", delta=delta.text, logprobs=list(delta.logprobs))


def add_annotation(writer: Writer, delta: Annotation) -> None:
    annotations = writer.part["annotations"]
    annotations.append(delta.annotation)
    writer.emit_part(
        "response.output_text.annotation.added",
        annotation_index=len(annotations) - 1,
        annotation=delta.annotation,
    )


def add_refusal(writer: Writer, delta: Refusal) -> None:
    writer.pieces.append(delta.text)
    writer.emit_part("response.refusal.delta", delta=delta.text)


def add_reasoning(writer: Writer, delta: Reasoning) -> None:
    writer.pieces.append(delta.text)
    writer.emit_part("response.reasoning_text.delta", delta=delta.text)


def add_summary(writer: Writer, delta: Reasoning) -> None:
    """Shows the reasoning itself as its summary: models here make none."""
    writer.emit_item("response.reasoning_summary_text.delta", summary_index=0, delta=delta.text)


def close_text(writer: Writer, _: Any) -> None:
    writer.part["logprobs"] = list(writer.logprobs)
    writer.finish_part("response.output_text.done", "text", logprobs=writer.part["logprobs"])


def close_refusal(writer: Writer, _: Any) -> None:
    writer.finish_part("response.refusal.done", "refusal")


def close_reasoning(writer: Writer, _: Any) -> None:
    writer.finish_part("response.reasoning_text.done", "text")


def close_summary(writer: Writer, _: Any) -> None:
    """Comes after `close_reasoning`, which joins the text."""
    part = writer.item["summary"][0]
    part["text"] = writer.part["text"]
    cut: Json = {"status": "incomplete"} if writer.cut else {}
    writer.emit_item("response.reasoning_summary_text.done", summary_index=0, text=part["text"])
    writer.emit_item("response.reasoning_summary_part.done", summary_index=0, part=dict(part), **cut)


# -- calls that the client runs --------------------------------------------------------------------------------


def open_call(writer: Writer, delta: CallStart) -> None:
    writer.add_item("fc", type="function_call", **_called(writer, delta), arguments="")


def open_custom(writer: Writer, delta: CustomStart) -> None:
    writer.add_item("ctc", type="custom_tool_call", **_called(writer, delta), input="")


def add_arguments(writer: Writer, delta: CallArguments) -> None:
    writer.add_piece(delta.text, "response.function_call_arguments.delta")


def add_input(writer: Writer, delta: CustomInput) -> None:
    writer.add_piece(delta.text, "response.custom_tool_call_input.delta")


def close_call(writer: Writer, _: Any) -> None:
    arguments = writer.join_pieces("arguments")
    writer.emit_item("response.function_call_arguments.done", arguments=arguments, name=writer.item["name"])


def close_custom(writer: Writer, _: Any) -> None:
    writer.emit_item("response.custom_tool_call_input.done", input=writer.join_pieces("input"))


def add_tool_search(writer: Writer, delta: ToolSearch) -> None:
    """Adds the call whole: its arguments are an object, of which no half can be shown.

    If the server searched, what it found follows. In OpenAI's API such a call has no `call_id`.
    """
    by_client = delta.found is None
    call = {"call_id": writer.new_id("call") if by_client else None, "execution": "client" if by_client else SERVER}
    _add_whole(writer, "tsc", {"type": TOOL_SEARCH_CALL, **call, "arguments": delta.arguments})
    if delta.found is not None:
        _add_whole(writer, "tso", {"type": TOOL_SEARCH_OUTPUT, **call, "tools": list(delta.found)})


def add_local_call(writer: Writer, delta: LocalCall) -> None:
    kind, status = delta.kind, "completed" if delta.whole else delta.kind.cut_status
    call = {"type": kind.call_type, "call_id": writer.new_id("call"), **delta.fields}
    _add_whole(writer, kind.id_prefix, call, status)


def _add_whole(writer: Writer, prefix: str, fields: Json, status: str = "completed") -> None:
    """Adds an item and ends it: the model adds nothing to it."""
    writer.add_item(prefix, **fields)
    writer.item["status"] = status
    writer.end_item(writer.last_index)


def _called(writer: Writer, delta: CallStart | CustomStart) -> Json:
    namespace = {} if delta.namespace is None else {"namespace": delta.namespace}
    return {"call_id": writer.new_id("call"), "name": delta.name, **namespace}


# -- compaction ------------------------------------------------------------------------------------------------


def open_compaction(writer: Writer, _: CompactionStart) -> None:
    writer.add_item("cmp", type="compaction", encrypted_content="")


def note_compacting(writer: Writer, _: Compacting) -> None:
    writer.emit_item("response.compaction.compacting")


def set_compaction(writer: Writer, delta: Compacted) -> None:
    writer.item["encrypted_content"] = delta.encrypted_content


# -- the end of an item ----------------------------------------------------------------------------------------


def close_item(writer: Writer, _: Any) -> None:
    """Ends the open item, as `incomplete` if the response ends in the middle of it."""
    item = writer.item
    item["status"] = "incomplete" if writer.cut else "completed"
    if writer.seal is not None and item["type"] == "reasoning":
        item["encrypted_content"] = writer.seal("".join(part["text"] for part in item["content"]))
    writer.end_item(writer.last_index)


def cut_item(writer: Writer, _: Any) -> None:
    """Ends the open item in the middle, though the response may go on."""
    writer.item["status"] = "incomplete"
    writer.end_item(writer.last_index)
