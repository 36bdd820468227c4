"""Renders messages by a chat template's text, as vLLM does, without vLLM: for `longhaul models` and for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from config.chat_template import ChatTemplate
from config.shaping.proof import Render
from config.shaping.shape import Message, Shaping


def renderer(template: ChatTemplate) -> Render:
    def render(messages: Sequence[Message], tools: Sequence[Any], shaping: Shaping) -> str:
        return template.render([_as_vllm(message, shaping.parts) for message in messages], tools)

    return render


def _as_vllm(message: Message, parts: bool) -> dict[str, Any]:
    made = dict(message)
    content = made.get("content") or ""
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    shown = [part if part["type"] == "text" else {"type": "image"} for part in texts]
    if not parts or (message["role"] == "tool" and all(part["type"] == "text" for part in shown)):
        made["content"] = "\n".join(part.get("text", "<image>") for part in shown)
    else:
        made["content"] = shown
    if "reasoning" in message:
        made["reasoning_content"] = message["reasoning"]
    if "tool_calls" in message:
        made["tool_calls"] = [_called(call) for call in message["tool_calls"]]
    return made


def _called(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"] or "{}")}}
