"""A chat request as the request for a response that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.chat import names, request
from app.chat.completion import CALLS
from app.chat.messages import AssistantMessage, FilePart, ImagePart, Message, RefusalPart, TextPart, ToolMessage
from app.chat.names import chat_names
from app.chat.request import CreateChatCompletion
from app.chat.tools import ChatAllowedTools
from app.protocol.errors import InvalidRequest
from app.protocol.include import LOGPROBS
from app.protocol.item_types import OUTPUT_OF
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import validate
from app.protocol.text import shortened
from app.protocol.types import Json
from app.translation.names import Origin, Placed
from app.translation.request import TranslatedRequest, checked_fields

_ITEM_OF = {kind: item for item, (kind, _) in CALLS.items()}
"""The type of the item that a call becomes, by its type in chat."""
_LIMITS = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(TranslatedRequest):
    """A chat request that was checked, as a request for a response."""

    include_usage: bool
    include_reasoning: bool


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Returns the request in a decoded body. Raises InvalidRequest, which names the field as chat has it."""
    body = {name: value for name, value in body.items() if request.EMPTY.get(name) != value}
    sent = validate(CreateChatCompletion, body)
    _check(sent, body)
    items = [placed for index, message in enumerate(_answered(sent.messages)) for placed in _items(index, *message)]
    offered = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(sent.tools or ())]
    choice, chosen = _choice(sent.tool_choice)
    made = _flat_fields(sent, body, choice)
    if sent.tools is not None:
        made["tools"] = [tool for _, tool in offered]
    made["input"] = [item for _, item in items]
    called = chat_names(
        {"input": items, "tools": offered, "tool_choice.tools": chosen},
        {
            "max_output_tokens": "max_completion_tokens" if sent.max_tokens is None else "max_tokens",
            "reasoning.effort": "reasoning.effort" if sent.reasoning_effort is None else "reasoning_effort",
            "tool_choice.name": f"tool_choice.{choice['type'] if isinstance(choice, dict) else choice}.name",
        },
    )
    return ChatRequest(
        checked_fields(made, called),
        body,
        names=called,
        include_usage=sent.stream_options is not None and bool(sent.stream_options.include_usage),
        include_reasoning=sent.include_reasoning is not False,
    )


def _check(sent: CreateChatCompletion, body: Mapping[str, Any]) -> None:
    """Raises InvalidRequest about fields that contradict each other in chat's own terms."""
    limits = [name for name in body if name in _LIMITS and body[name] is not None]
    if len(limits) == 2:
        message = f"'{limits[0]}' and '{limits[1]}' cannot be used together; send 'max_completion_tokens' alone."
        raise InvalidRequest(message, limits[1], "mutually_exclusive_parameters")
    if sent.reasoning is not None and sent.reasoning.effort not in (None, sent.effort):
        message = "'reasoning.effort' and 'reasoning_effort' differ; send 'reasoning_effort' alone."
        raise InvalidRequest(message, "reasoning.effort", "mutually_exclusive_parameters")
    if sent.top_logprobs and not sent.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "invalid_value")
    if sent.stream_options is not None and not sent.stream:
        raise InvalidRequest("'stream_options' needs 'stream' to be true.", "stream_options", "invalid_value")


def _flat_fields(sent: CreateChatCompletion, body: Mapping[str, Any], choice: str | Json | None) -> Json:
    """Returns the fields of the response request but those that are lists, in the order of the chat request."""
    made: Json = {}
    for name in body:
        if name in request.SAME or name == "model":
            made[name] = body[name]
        elif name in _LIMITS and body[name] is not None:
            made["max_output_tokens"] = body[name]
        elif name in ("reasoning", "reasoning_effort") and sent.effort is not None:
            made["reasoning"] = {"effort": sent.effort}
        elif name in ("response_format", "verbosity"):
            made["text"] = {"format": _format(sent), "verbosity": sent.verbosity}
        elif name == "logprobs" and sent.logprobs:
            made["include"] = [LOGPROBS]
        elif name == "tool_choice":
            made[name] = choice
        elif name == "stream_options" and sent.stream_options is not None:
            made[name] = {"include_obfuscation": sent.stream_options.include_obfuscation}
    return {**made, "store": bool(sent.store)}


def _format(sent: CreateChatCompletion) -> Json | None:
    if (asked := sent.response_format) is None:
        return None
    schema = {} if asked.json_schema is None else asked.json_schema.model_dump(by_alias=True, exclude_unset=True)
    return {"type": asked.type, **schema}


def _tool(place: str, tool: Any) -> Placed:
    """Returns a tool, or a choice of one, in the flat form that responses have; `place` is its path."""
    if isinstance(tool, OmittedTool):
        return Origin(place), tool.model_dump()
    made = getattr(tool, tool.type).model_dump(exclude_unset=True)
    if (asked := made.get("format")) is not None:
        made["format"] = {"type": asked["type"], **(asked.get("grammar") or {})}
    return Origin(place, names.OF_TOOLS[tool.type]), {"type": tool.type, **made}


def _choice(choice: Any) -> tuple[str | Json | None, list[Placed]]:
    """Returns the choice, and the tools that it allows."""
    if choice is None or isinstance(choice, str):
        return choice, []
    if not isinstance(choice, ChatAllowedTools):
        return _tool("", choice)[1], []
    allowed = choice.allowed_tools
    chosen = [_tool(f"tool_choice.allowed_tools.tools[{index}]", tool) for index, tool in enumerate(allowed.tools)]
    return {"type": choice.type, "mode": allowed.mode, "tools": [tool for _, tool in chosen]}, chosen


def _answered(messages: Sequence[Message]) -> Iterable[tuple[Message, str | None]]:
    """Yields each message with the type of the call that it answers. Raises InvalidRequest if no call is before it."""
    calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        answers: str | None = None
        if isinstance(message, AssistantMessage):
            calls |= {call.id: call.type for call in message.tool_calls or ()}
        elif isinstance(message, ToolMessage) and (answers := calls.get(message.tool_call_id)) is None:
            where = f"messages[{index}].tool_call_id"
            sent = shortened(message.tool_call_id)
            said = f"Invalid '{where}': no message before it has a call with the id '{sent}' in its 'tool_calls'."
            raise InvalidRequest(said, where, "invalid_value")
        yield message, answers


def _items(index: int, message: Message, answers: str | None) -> Iterable[Placed]:
    """Yields the items of `input` that a message becomes."""
    where = f"messages[{index}]"
    if isinstance(message, AssistantMessage):
        yield from _answer(where, message)
    elif isinstance(message, ToolMessage):
        output_type = OUTPUT_OF[_ITEM_OF[answers or "function"]]
        item = {"type": output_type, "call_id": message.tool_call_id, "output": _content(message.content)}
        yield Origin(where, names.OUTPUT), item
    else:
        yield Origin(where, names.MESSAGE), {"role": message.role, "content": _content(message.content)}


def _answer(where: str, message: AssistantMessage) -> Iterable[Placed]:
    """Reasoning, then the answer, then the calls: in the order in which a model writes them."""
    thoughts, newer = message.reasoning_content, message.reasoning
    if thoughts and newer and thoughts != newer:
        said = f"'{where}.reasoning' and '{where}.reasoning_content' have different texts; send one of them."
        raise InvalidRequest(said, f"{where}.reasoning", "mutually_exclusive_parameters")
    if text := thoughts or newer:
        name = "reasoning_content" if thoughts else "reasoning"
        item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
        yield Origin(f"{where}.{name}", names.REASONING), item
    content = _content(message.content)
    if message.refusal:
        parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else content or []
        content = [*parts, {"type": "refusal", "refusal": message.refusal}]
    if content or not (message.tool_calls or (text and content is None)):
        if "content" not in message.model_fields_set and not content:
            missing = f"{where}.content"
            raise InvalidRequest(f"Missing required parameter: '{missing}'.", missing, "missing_required_parameter")
        yield Origin(where, names.MESSAGE), {"role": "assistant", "content": content}
    for number, call in enumerate(message.tool_calls or ()):
        item = {"type": _ITEM_OF[call.type], "call_id": call.id, **getattr(call, call.type).model_dump()}
        yield Origin(f"{where}.tool_calls[{number}]", names.OF_CALLS[call.type]), item


def _content(content: str | Sequence[TextPart | ImagePart | FilePart | RefusalPart] | None) -> str | list[Json] | None:
    return content if content is None or isinstance(content, str) else [_part(part) for part in content]


def _part(part: TextPart | ImagePart | FilePart | RefusalPart) -> Json:
    if isinstance(part, RefusalPart):
        return part.model_dump()
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, FilePart):
        return {"type": "input_file", **part.file.model_dump(exclude_none=True)}
    image = part.image_url
    detail = {} if image.detail is None else {"detail": image.detail}
    return {"type": "input_image", "image_url": image.url, **detail}
