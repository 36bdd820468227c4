"""Which format a model is talked to in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from config.models import ServedModel
from workers.engine.base import Engine
from workers.formats.chat.turn import build_chat_turn
from workers.formats.turn import PastTurn, Turn, TurnContext


async def build_turn(
    engine: Engine,
    model: ServedModel,
    request: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    past: Sequence[PastTurn],
    seen: TurnContext,
) -> Turn:
    """The turn of a stored request behind `items` and its own `past` turns.

    Raises InvalidSampling (the message names the field), PromptTooLong or EngineError.
    """
    if model.harmony:
        from workers.formats.harmony.turn import build_harmony_turn  # loads its vocabulary: not for everyone

        return await build_harmony_turn(engine, model, request, items, past, seen)
    return await build_chat_turn(engine, model, request, items, past, seen)
