"""Turns the answer of a hosted tool into what its item shows and what the model gets."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types

from app.protocol.hosted_kinds import CODE_OUTPUTS, SEARCH_SOURCES
from app.protocol.requests.images import is_readable
from app.protocol.types import Json
from workers.formats.calls.browser import action_of
from workers.formats.calls.hosted import HostedCall, McpServerKind
from workers.formats.calls.hosted_items import Result

MAX_IMAGE_BYTES = 4 * 1024 * 1024
"""The most bytes, in base64, of all images of one result together."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a call ended."""

    ok: bool
    fields: Json
    """The fields to set on the call's item."""
    result: Result
    """What the model gets."""
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
    text = _truncate(_text(answer), options.max_bytes)
    for_model: Result = text
    images = _images(answer.content)
    if images and options.images:
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in images]
        for_model = [{"type": "input_text", "text": text}, *parts]
    if call.kind is McpServerKind.BROWSER:
        return _search_result(call, answer, for_model, options)
    if call.kind is McpServerKind.PYTHON:
        return ToolResult(not answer.is_error, {"outputs": _outputs(text, images, options)}, for_model)
    if answer.is_error:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        return ToolResult(False, {"output": None, "error": error}, for_model)
    return ToolResult(True, {"output": text, "error": None}, for_model)


def failed_result(
    call: HostedCall, message: str, options: ResultOptions, code: int = types.INTERNAL_ERROR
) -> ToolResult:
    """The result of a call that has no answer. The client and the model get `message`; `code` is JSON-RPC's."""
    message = _truncate(message, options.max_bytes)
    if call.kind is McpServerKind.PYTHON:
        return ToolResult(False, {"outputs": _outputs(message, (), options)}, message)
    if call.kind is McpServerKind.BROWSER:
        return ToolResult(False, {}, message)
    return ToolResult(
        False, {"output": None, "error": {"type": "mcp_protocol_error", "code": code, "message": message}}, message
    )


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


def _search_result(
    call: HostedCall, answer: types.CallToolResult, for_model: Result, options: ResultOptions
) -> ToolResult:
    facts = answer.structured_content if isinstance(answer.structured_content, Mapping) else {}
    action = action_of(call.tool, call.arguments)
    details = facts.get("action")
    if isinstance(details, Mapping) and details.get("type") == action["type"]:
        action = {**action, **details}
    if SEARCH_SOURCES not in options.include:
        action.pop("sources", None)
    sources = {} if answer.is_error or "cursor" not in facts else {str(facts["cursor"]): _source(facts)}
    return ToolResult(not answer.is_error, {"action": action}, for_model, sources)


def _source(facts: Mapping[str, Any]) -> Json:
    return {name: facts[name] for name in ("url", "title", "lines", "results") if name in facts}


def _outputs(text: str, images: Iterable[str], options: ResultOptions) -> list[Json] | None:
    if CODE_OUTPUTS not in options.include:
        return None
    logs = [{"type": "logs", "logs": text}] if text else []
    return [*logs, *({"type": "image", "url": url} for url in images)]


def _text(answer: types.CallToolResult) -> str:
    parts = [_text_of_block(block) for block in answer.content]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
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


def _truncate(text: str, max_bytes: int) -> str:
    """The first `max_bytes` bytes of a text, as valid UTF-8, with a note where there was more."""
    data = text.encode(errors="replace")
    if len(data) <= max_bytes:
        return data.decode()
    kept = data[:max_bytes].decode(errors="ignore")
    return f"{kept}\n[Cut here: these are the first {len(kept.encode())} of {len(data)} bytes.]"
