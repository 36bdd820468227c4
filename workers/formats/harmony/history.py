"""Messages in harmony's own form: those that clients send, those of past turns, and those in response objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openai_harmony import Author, Message, Role, TextContent

from app.protocol.item_types import TOOL_SEARCH_OUTPUT
from app.protocol.types import Json
from workers.engine.base import InvalidSampling
from workers.engine.harmony_vocabulary import COMMENTARY
from workers.formats.calls.client_tools import TOOL_SEARCH, ClientTools, loaded_text
from workers.formats.content import text_of
from workers.formats.harmony.messages import FUNCTIONS, channel_of, result_message
from workers.formats.harmony.prompt import Conversation
from workers.formats.harmony.reader import messages_in
from workers.formats.turn import PastTurn

FIELD = "previous_input_messages"
_OF_THE_REQUEST = (Role.SYSTEM, Role.DEVELOPER)
"""Roles whose content comes from the new request."""


def earlier_messages(sent: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of `previous_input_messages` without system and developer messages, as in vLLM.

    They have openai_harmony's form: `{role, name?, content, channel?, recipient?, content_type?}`, or the author as an
    object. Raises InvalidSampling.
    """
    messages = [_message(message, f"{FIELD}[{index}]") for index, message in enumerate(sent)]
    return [message for message in messages if message.author.role not in _OF_THE_REQUEST]


def _message(sent: Mapping[str, Any], field: str) -> Message:
    author = sent.get("author")
    role, name = _author(author if isinstance(author, Mapping) else sent, field)
    about = {key: _text(sent.get(key), f"{field}.{key}") for key in ("channel", "recipient", "content_type")}
    text = "" if role in _OF_THE_REQUEST else _content(sent.get("content"), f"{field}.content")
    return Message(author=Author(role=role, name=name), content=[TextContent(text=text)], **about)


def _author(sent: Mapping[str, Any], field: str) -> tuple[Role, str | None]:
    try:
        return Role(sent.get("role")), _text(sent.get("name"), f"{field}.name")
    except ValueError:
        known = ", ".join(repr(role.value) for role in Role)
        raise InvalidSampling(f"{field}.role must be one of {known}") from None


def _text(value: Any, field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidSampling(f"{field} must be a string")


def _content(value: Any, field: str) -> str:
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise InvalidSampling(f"{field} must be a string or a list of parts")
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise InvalidSampling(f"{field} must hold parts of type 'text'")
    return "".join(map(str, texts))


def result_messages(turn: PastTurn, client: ClientTools) -> list[Message]:
    """The results of a past turn's calls, in the calls' order, each in its call's channel; and what searches found."""
    calls = [(header.recipient, header.channel) for header, _ in messages_in(turn.tokens) if header.recipient]
    results = []
    for item in turn.items:
        if item["type"] == TOOL_SEARCH_OUTPUT:
            results.append(result_message(FUNCTIONS + TOOL_SEARCH, loaded_text(item, client), COMMENTARY))
        elif (call := item.get("call")) is not None:
            index = next((index for index, (name, _) in enumerate(calls) if name == call["name"]), None)
            channel = calls.pop(index)[1] if index is not None else None
            results.append(result_message(call["name"], text_of(call["result"]), channel or channel_of(call["name"])))
    return results


def response_messages(
    conversation: Conversation, past: Sequence[PastTurn], tokens: Iterable[int]
) -> dict[str, list[Json]]:
    """The fields that `enable_response_messages` adds to the response object. `tokens` are the last turn's."""
    earlier = [
        message for turn in past for message in (*_written(turn.tokens), *result_messages(turn, conversation.client))
    ]
    return {
        "input_messages": [_object(message) for message in conversation.messages],
        "output_messages": [_object(message) for message in (*earlier, *_written(tokens))],
    }


def _written(tokens: Iterable[int]) -> list[Message]:
    """A turn's messages, as the model wrote them."""
    return [
        Message(
            author=Author(role=Role(header.role)),
            content=[TextContent(text=text)],
            channel=header.channel,
            recipient=header.recipient,
            content_type=header.content_type,
        )
        for header, text in messages_in(tokens)
    ]


def _object(message: Message) -> Json:
    value: Json = json.loads(message.to_json())
    return value
