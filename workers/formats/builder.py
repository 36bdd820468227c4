"""Builds a turn in the format that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from config.models import ServedModel
from workers.engine.base import Engine
from workers.formats.chat.turn import build_chat_turn
from workers.formats.off_loop import off_loop
from workers.formats.reasoning import without_left_out
from workers.formats.turn import PastTurn, Turn, TurnContext


async def build_turn(
    engine: Engine,
    model: ServedModel,
    request: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    past: Sequence[PastTurn],
    context: TurnContext,
) -> Turn:
    """The next turn of a stored request, after `items` (earlier context, then its input) and its own `past` turns.

    Raises InvalidSampling (the message names the field), PromptTooLong or EngineError.
    """
    items = await off_loop(items, without_left_out, items, request)
    if model.harmony:
        from workers.formats.harmony.turn import build_harmony_turn  # loads a vocabulary that other models do not need

        return await build_harmony_turn(engine, model, request, items, past, context)
    return await build_chat_turn(engine, model, request, items, past, context)
