"""What a model is shown of its tools."""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.types import Json
from tests.support.worker import scripted_model
from workers.engine import make_engine
from workers.formats.builder import build_turn, plan_turn
from workers.formats.turn import PastTurn


async def prompt_of(request: Json, *items: Json, past: Sequence[PastTurn] = ()) -> str:
    """The prompt of the scripted engine, without its special tokens."""
    engine = make_engine(scripted_model())
    await engine.start()
    shown = items or request["input"]
    turn = await build_turn(await plan_turn(engine, scripted_model(), request, shown, past, 0, {}), shown)
    return bytes(token for token in turn.prompt if token < 256).decode()
