"""Harmony's own messages: those that a client sends, those of this response's turns, and those that it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openai_harmony import Author, Message, Role, TextContent

from workers.engine.base import InvalidSampling
from workers.formats.harmony.messages import channel_of, result_message, text_of
from workers.formats.harmony.prompt import Conversation
from workers.formats.harmony.reader import messages_in
from workers.formats.turn import PastTurn

Json = dict[str, Any]

FIELD = "previous_input_messages"
_SETTLED = (Role.SYSTEM, Role.DEVELOPER)
"""What they say is the new request's business."""


def earlier_messages(sent: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of `previous_input_messages`, but for system and developer messages, as in vLLM.

    In openai_harmony's form: `{role, name?, content, channel?, recipient?, content_type?}`, or with the author as an
    object. Raises InvalidSampling.
    """
    read = [_message(message, f"{FIELD}[{place}]") for place, message in enumerate(sent)]
    return [message for message in read if message.author.role not in _SETTLED]


def _message(sent: Mapping[str, Any], field: str) -> Message:
    author = sent.get("author")
    role, name = _author(author if isinstance(author, Mapping) else sent, field)
    about = {key: _text(sent.get(key), f"{field}.{key}") for key in ("channel", "recipient", "content_type")}
    text = "" if role in _SETTLED else _content(sent.get("content"), f"{field}.content")
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


def results_of(turn: PastTurn) -> list[Message]:
    """What the calls of a past turn gave, in the order in which they were made, each in its call's channel."""
    made = [(header.recipient, header.channel) for header, _ in messages_in(turn.tokens) if header.recipient]
    told = []
    for item in turn.items:
        if (call := item.get("call")) is not None:
            place = next((index for index, (name, _) in enumerate(made) if name == call["name"]), None)
            channel = made.pop(place)[1] if place is not None else None
            told.append(result_message(call["name"], text_of(call["result"]), channel or channel_of(call["name"])))
    return told


def shown(conversation: Conversation, past: Sequence[PastTurn], tokens: Iterable[int]) -> dict[str, list[Json]]:
    """What the response object has where `enable_response_messages` asks for it. `tokens` are the last turn's."""
    said = [message for turn in past for message in (*_written(turn.tokens), *results_of(turn))]
    return {
        "input_messages": [_object(message) for message in conversation.messages],
        "output_messages": [_object(message) for message in (*said, *_written(tokens))],
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
    made: Json = json.loads(message.to_json())
    return made
