"""What a tool gave -> what its item shows, and what the model is told."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types

from app.protocol.include import CODE_OUTPUTS, SEARCH_SOURCES
from workers.formats.calls.hosted import HostedCall, Kind, action_of
from workers.formats.calls.hosted_items import Result

Json = dict[str, Any]

MOST_IMAGE_BYTES = 4 * 1024 * 1024
"""Of all the images of one result, in base64."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a call ended."""

    ok: bool
    fields: Json
    """What its item gains."""
    result: Result
    """What the model is told."""
    sources: Json = field(default_factory=dict)
    """What the model may cite from it, by cursor: `{url, title, results}`."""


@dataclass(frozen=True, slots=True)
class View:
    """What of a result is shown, and to whom."""

    most_bytes: int
    """Of its text."""
    include: Collection[str] = ()
    """Of the request."""
    images: bool = False
    """The model looks at images."""


def ran(call: HostedCall, answer: types.CallToolResult, view: View) -> ToolResult:
    """A call that its server answered."""
    text = _cut(_text(answer), view.most_bytes)
    told: Result = text
    images = _images(answer.content)
    if images and view.images:
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in images]
        told = [{"type": "input_text", "text": text}, *parts]
    if call.kind is Kind.BROWSER:
        return _searched(call, answer, told, view)
    if call.kind is Kind.PYTHON:
        return ToolResult(not answer.is_error, {"outputs": _outputs(text, images, view)}, told)
    if answer.is_error:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
        return ToolResult(False, {"output": None, "error": error}, told)
    return ToolResult(True, {"output": text, "error": None}, told)


def failed(call: HostedCall, message: str, view: View, code: int = types.INTERNAL_ERROR) -> ToolResult:
    """A call that did not come to an answer; `message` is what everybody is told, `code` is JSON-RPC's."""
    message = _cut(message, view.most_bytes)
    if call.kind is Kind.PYTHON:
        return ToolResult(False, {"outputs": _outputs(message, (), view)}, message)
    if call.kind is Kind.BROWSER:
        return ToolResult(False, {}, message)
    return ToolResult(
        False, {"output": None, "error": {"type": "mcp_protocol_error", "code": code, "message": message}}, message
    )


def listed(tools: Iterable[types.Tool]) -> list[Json]:
    """As an mcp_list_tools item has them."""
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


def _searched(call: HostedCall, answer: types.CallToolResult, told: Result, view: View) -> ToolResult:
    facts = answer.structured_content if isinstance(answer.structured_content, Mapping) else {}
    action = action_of(call.tool, call.arguments)
    known = facts.get("action")
    if isinstance(known, Mapping) and known.get("type") == action["type"]:
        action = {**action, **known}
    if SEARCH_SOURCES not in view.include:
        action.pop("sources", None)
    sources = {} if answer.is_error or "cursor" not in facts else {str(facts["cursor"]): _source(facts)}
    return ToolResult(not answer.is_error, {"action": action}, told, sources)


def _source(facts: Mapping[str, Any]) -> Json:
    return {name: facts[name] for name in ("url", "title", "lines", "results") if name in facts}


def _outputs(text: str, images: Iterable[str], view: View) -> list[Json] | None:
    if CODE_OUTPUTS not in view.include:
        return None
    logs = [{"type": "logs", "logs": text}] if text else []
    return [*logs, *({"type": "image", "url": url} for url in images)]


def _text(answer: types.CallToolResult) -> str:
    said = [_words(block) for block in answer.content]
    if not said and answer.structured_content is not None:
        said = [json.dumps(answer.structured_content, ensure_ascii=False)]
    return "\n".join(filter(None, said))


def _words(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ResourceLink):
        return f"[{block.title or block.name}]({block.uri})"
    if isinstance(block, types.EmbeddedResource):
        inner = block.resource
        return inner.text if isinstance(inner, types.TextResourceContents) else f"[a file: {inner.uri}]"
    return "[an image]" if isinstance(block, types.ImageContent) else "[a sound]"


def _images(content: Iterable[types.ContentBlock]) -> list[str]:
    """As data URLs; what is too much is left out."""
    urls, room = [], MOST_IMAGE_BYTES
    for block in content:
        if isinstance(block, types.ImageContent) and len(block.data) <= room:
            room -= len(block.data)
            urls.append(f"data:{block.mime_type};base64,{block.data}")
    return urls


def _cut(text: str, most: int) -> str:
    """At most `most` bytes of it, as UTF-8 that Postgres and models can take."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    kept = data[:most].decode(errors="ignore")
    return f"{kept}\n[Cut here: these are the first {len(kept.encode())} of {len(data)} bytes.]"
