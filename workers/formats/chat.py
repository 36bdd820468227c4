"""Chat models: items of a request -> messages for the chat template; token ids -> deltas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.protocol.deltas import Delta, Text
from workers.engine.base import Decoder, Message

_ROLES = {"developer": "system"}
"""Roles that chat templates do not know, and what they are called there."""


def messages_of(request: Mapping[str, Any]) -> list[Message]:
    """The messages of a stored request, instructions first.

    System messages at the head become one: most templates take a single one, and only there.
    """
    messages: list[dict[str, Any]] = []
    if request["instructions"]:
        messages.append({"role": "system", "content": request["instructions"]})
    for item in request["input"]:
        role = _ROLES.get(item["role"], item["role"])
        text = "".join(part["text"] for part in item["content"])
        if role == "system" and len(messages) == 1 and messages[0]["role"] == "system":
            messages[0]["content"] += "\n\n" + text
        else:
            messages.append({"role": role, "content": text})
    return list(messages)


class ChatParser:
    """One response's token ids -> what the model said; a function of the whole token list."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """What these tokens add for certain."""
        return self._deltas(self._decoder.feed(token_ids))

    def flush(self) -> list[Delta]:
        """What was held back, once the last token is there."""
        return self._deltas(self._decoder.flush())

    def _deltas(self, text: str) -> list[Delta]:
        return [Text(text)] if text else []
