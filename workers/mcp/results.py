"""Turns the answer of a hosted tool into what its item shows and what the model gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types

from app.protocol.hosted_kinds import CODE_OUTPUTS, SEARCH_SOURCES
from app.protocol.requests.items.images import is_readable
from app.protocol.types import Json
from app.sizes import json_size
from config.server_kind import BUILT_IN, ServerKind
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


@dataclass(frozen=True, slots=True)
class _Answer:
    """A server's answer to a call."""

    call: HostedCall
    is_error: bool
    text: str
    """Truncated."""
    images: Sequence[str]
    facts: Mapping[str, Any]
    """The answer's structured content."""


@dataclass(frozen=True, slots=True)
class _ItemFields:
    """Fields that the servers of one kind set on the items of their calls."""

    answered: Callable[[_Answer, ResultOptions], Json]
    failed: Callable[[str, int, ResultOptions], Json]
    """Makes the result of a call without an answer, of the message and JSON-RPC's code."""
    sources: Callable[[_Answer], Json] = lambda _: {}
    """See `ToolResult`."""


def result_of(call: HostedCall, answer: types.CallToolResult, options: ResultOptions) -> ToolResult:
    """The result of a call that its server answered."""
    left_out = (answer.meta or {}).get(LEFT_OUT)
    text = _truncate(_text(call, answer), options.max_bytes, left_out if isinstance(left_out, int) else 0)
    images = _images(answer.content)
    facts = answer.structured_content if isinstance(answer.structured_content, Mapping) else {}
    given, fields = _Answer(call, bool(answer.is_error), text, images, facts), _FIELDS[call.kind]
    for_model: Result = text
    if images and options.images:
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in images]
        for_model = [{"type": "input_text", "text": text}, *parts]
    return ToolResult(not given.is_error, fields.answered(given, options), for_model, fields.sources(given))


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
    return ToolResult(False, _FIELDS[call.kind].failed(message, code, options), message)


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


def _search(answer: _Answer, options: ResultOptions) -> Json:
    action = action_of(answer.call.tool, answer.call.arguments)
    details = answer.facts.get("action")
    if isinstance(details, Mapping) and details.get("type") == action["type"]:
        action = {**action, **details}
    if SEARCH_SOURCES not in options.include:
        action.pop("sources", None)
    return {"action": action}


def _sources(answer: _Answer) -> Json:
    facts = answer.facts
    if answer.is_error or "cursor" not in facts:
        return {}
    return {str(facts["cursor"]): {name: facts[name] for name in ("url", "title", "lines", "results") if name in facts}}


def _mcp_output(answer: _Answer, _: ResultOptions) -> Json:
    if answer.is_error:
        content = [{"type": "text", "text": answer.text}]
        return {"output": None, "error": {"type": "mcp_tool_execution_error", "content": content}}
    return {"output": answer.text, "error": None}


def _mcp_error(message: str, code: int, _: ResultOptions) -> Json:
    return {"output": None, "error": {"type": "mcp_protocol_error", "code": code, "message": message}}


def _outputs(text: str, images: Iterable[str], options: ResultOptions) -> list[Json] | None:
    if CODE_OUTPUTS not in options.include:
        return None
    logs = [{"type": "logs", "logs": text}] if text else []
    return [*logs, *({"type": "image", "url": url} for url in images)]


_OF_MCP = _ItemFields(_mcp_output, _mcp_error)
_FIELDS: Mapping[ServerKind | None, _ItemFields] = {
    "python": _ItemFields(
        lambda answer, options: {"outputs": _outputs(answer.text, answer.images, options)},
        lambda message, _code, options: {"outputs": _outputs(message, (), options)},
    ),
    "browser": _ItemFields(_search, lambda _message, _code, _options: {}, _sources),
    "mcp": _OF_MCP,
    None: _OF_MCP,
}


def _text(call: HostedCall, answer: types.CallToolResult) -> str:
    """The texts; and the structured content as JSON, if an MCP server has put something else there."""
    parts, data = [_text_of_block(block) for block in answer.content], answer.structured_content
    built_in = call.kind in BUILT_IN  # its texts say everything to the model, and the data are for `_FIELDS`
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
