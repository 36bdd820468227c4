"""Turns the answer of a hosted tool into what its item shows and what the model gets."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

import mcp_types as types

from app.protocol.hosted_kinds import CODE_OUTPUTS, SEARCH_SOURCES
from app.protocol.requests.items.images import is_readable
from app.protocol.types import Json
from app.sizes import json_size
from config.server_kind import BUILT_IN
from workers.formats.calls.browser import action_of
from workers.formats.calls.hosted import HostedCall
from workers.formats.content import Result
from workers.mcp.answers import LEFT_OUT, MAX_IMAGE_BYTES, says


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a call ended."""

    ok: bool
    fields: Json
    """The fields to set on the call's item."""
    result: Result
    """The text that the model gets."""
    sources: Json = field(default_factory=dict)
    """What the model may cite from the result, by the browser's cursor: `{url, title, results}`."""


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """How much of a result the client and the model get."""

    max_bytes: int
    """The most bytes of its text."""
    include: Collection[str] = ()
    """The request's `include`."""
    images: bool = False
    """Whether the model can see images."""


def result_of(call: HostedCall, answer: types.CallToolResult, options: ResultOptions) -> ToolResult:
    """The result of a call that its server answered."""
    left_out = (answer.meta or {}).get(LEFT_OUT)
    text = _truncate(_text(call, answer), options.max_bytes, left_out if isinstance(left_out, int) else 0)
    images, is_error = _images(answer.content), bool(answer.is_error)
    facts = answer.structured_content if isinstance(answer.structured_content, Mapping) else {}
    fields, sources = dict[str, Any](), dict[str, Any]()
    match call.kind:
        case "python":
            fields = {"outputs": _outputs(text, images, options)}
        case "browser":
            fields, sources = _search(call, facts, options), {} if is_error else _sources(facts)
        case "mcp" | None:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
            fields = {"output": None, "error": error} if is_error else {"output": text, "error": None}
        case _:
            assert_never(call.kind)
    for_model: Result = text
    if images and options.images:
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in images]
        for_model = [{"type": "input_text", "text": text}, *parts]
    return ToolResult(not is_error, fields, for_model, sources)


def size_of(answer: types.CallToolResult) -> int:
    """About how many bytes `result_of` reads: texts, images, and what was given as structured content."""
    size = json_size([answer.structured_content])
    for block in answer.content:
        if isinstance(block, types.ImageContent):
            size += len(block.data)
        else:
            size += len(_text_of_block(block))
    return size


def failed_result(
    call: HostedCall, message: str, options: ResultOptions, code: int = types.INTERNAL_ERROR
) -> ToolResult:
    """The result of a call that has no answer. The client and the model get `message`; `code` is JSON-RPC's."""
    message = _truncate(message, options.max_bytes)
    error = {"type": "mcp_protocol_error", "code": code, "message": message}
    fields: Json = {"output": None, "error": error}
    if call.kind in BUILT_IN:
        fields = {"outputs": _outputs(message, (), options)} if call.kind == "python" else {}
    return ToolResult(False, fields, message)


def tool_list(tools: Iterable[types.Tool]) -> list[Json]:
    """The tools in the form of an mcp_list_tools item."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.input_schema,
            "annotations": tool.annotations
            and tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        for tool in tools
    ]


def _search(call: HostedCall, facts: Mapping[str, Any], options: ResultOptions) -> Json:
    action = action_of(call.tool, call.arguments)
    details = facts.get("action")
    if isinstance(details, Mapping) and details.get("type") == action["type"]:
        action = {**action, **details}
    if SEARCH_SOURCES not in options.include:
        action.pop("sources", None)
    return {"action": action}


def _sources(facts: Mapping[str, Any]) -> Json:
    if "cursor" not in facts:
        return {}
    return {str(facts["cursor"]): {name: facts[name] for name in ("url", "title", "lines", "results") if name in facts}}


def _outputs(text: str, images: Iterable[str], options: ResultOptions) -> list[Json] | None:
    if CODE_OUTPUTS not in options.include:
        return None
    logs = [{"type": "logs", "logs": text}] if text else []
    return [*logs, *({"type": "image", "url": url} for url in images)]


def _text(call: HostedCall, answer: types.CallToolResult) -> str:
    """The texts; and the structured content as JSON, if an MCP server has put something else there."""
    parts, data = [_text_of_block(block) for block in answer.content], answer.structured_content
    built_in = call.kind in BUILT_IN  # its texts say everything to the model, and the data are for its item
    if data is not None and not (parts and (built_in or says([part for part in parts if part], data))):
        parts.append(json.dumps(data, ensure_ascii=False))
    return "\n".join(filter(None, parts))


def _text_of_block(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ResourceLink):
        return f"[{block.title or block.name}]({block.uri})"
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        return resource.text if isinstance(resource, types.TextResourceContents) else f"[a file: {resource.uri}]"
    return "[an image]" if isinstance(block, types.ImageContent) else "[a sound]"


def _images(content: Iterable[types.ContentBlock]) -> list[str]:
    """Images as data URLs; those beyond MAX_IMAGE_BYTES are left out, and those that no model could be shown."""
    urls, room = [], MAX_IMAGE_BYTES
    for block in content:
        if isinstance(block, types.ImageContent) and len(block.data) <= room:
            url = f"data:{block.mime_type};base64,{block.data}"
            if is_readable(url):
                room -= len(block.data)
                urls.append(url)
    return urls


def _truncate(text: str, max_bytes: int, left_out: int = 0) -> str:
    """The first `max_bytes` bytes of a text, as valid UTF-8, with a note if there was more, or bytes are left out."""
    data = text.encode(errors="replace")
    size = len(data) + left_out
    if size <= max_bytes:
        return data.decode()
    kept = data[:max_bytes].decode(errors="ignore")
    return f"{kept}\n[Cut here: these are the first {len(kept.encode())} of {size} bytes.]"
