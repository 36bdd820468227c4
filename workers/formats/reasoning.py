"""Whose reasoning a model is shown again: the `reasoning.context` of a request.

auto, or not sent   the format decides: the chat template, or harmony's rule (messages.py)
current_turn        the reasoning after the last user message, if the format shows it
all_turns           all reasoning. A chat template that cannot show it is refused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.protocol.item_types import MESSAGE, REASONING
from workers.engine.base import Engine, InvalidSampling, Message

ALL_TURNS_ARGS = {"preserve_thinking": True, "clear_thinking": False}
"""What templates that can do both call it: Qwen's, and GLM's. Other templates ignore the arguments."""


def shows_all_turns(request: Mapping[str, Any]) -> bool:
    return _context_of(request) == "all_turns"


def without_left_out(items: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The items without the reasoning that the request leaves out."""
    if _context_of(request) != "current_turn":
        return items
    asked = (index for index, item in enumerate(items) if item["type"] == MESSAGE and item["role"] == "user")
    last = max(asked, default=-1)
    return [item for index, item in enumerate(items) if index > last or item["type"] != REASONING]


async def check_template(engine: Engine, template_args: Mapping[str, Any]) -> None:
    """Raises InvalidSampling if the engine's chat template leaves out the reasoning of earlier turns."""
    if await _probe(engine, template_args, {"reasoning": "b"}) == await _probe(engine, template_args, {}):
        raise InvalidSampling(
            "reasoning.context: 'all_turns' is not possible, because this model's chat template leaves out the "
            "reasoning of earlier turns. Send 'auto' or 'current_turn'"
        )


def _context_of(request: Mapping[str, Any]) -> str | None:
    context: str | None = (request.get("reasoning") or {}).get("context")
    return context


async def _probe(engine: Engine, template_args: Mapping[str, Any], reasoning: Message) -> tuple[int, ...]:
    """The prompt of a conversation whose first turn has this reasoning."""
    answer = {"role": "assistant", "content": "c", **reasoning}
    question = {"role": "user", "content": "a"}
    return tuple(await engine.render([question, answer, question], template_args, []))
