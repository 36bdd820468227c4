"""A scripted model that answers in harmony."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from app.protocol.events.deltas import FinishReason
from app.store.database import Database
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from tests.support import worker as workers
from tests.support.logs import whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.scripted.engine import ScriptedEngine
from tests.support.worker import scripted_model, worker
from workers.engine import harmony_vocabulary as harmony
from workers.engine.base import EngineDelta, EngineRequest
from workers.engine.output_format import OutputSpec, Structured


class Harmony(ScriptedEngine):
    """Answers with `turns` in harmony, and repeats the last one; `prompts` are the prompts that it got."""

    def __init__(self, *turns: str) -> None:
        super().__init__(scripted_model())
        self._turns = turns
        self.prompts: list[str] = []

    async def harmony_grammar(self, spec: OutputSpec) -> Structured | None:
        return None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        turn = self._turns[min(len(self.prompts), len(self._turns) - 1)]
        self.prompts.append(harmony.encoding().decode(request.prompt))
        yield EngineDelta(tuple(harmony.encoding().encode(turn, allowed_special="all")), FinishReason.STOP)


async def said_in_harmony(
    db: Database, pubsub: PubSub, engine: Harmony, monkeypatch: pytest.MonkeyPatch, **request: Any
) -> ResponseRow:
    def model(**_: Any) -> Any:
        return replace(scripted_model(), format="harmony")

    monkeypatch.setattr(workers, "scripted_model", model)
    monkeypatch.setattr(workers, "ScriptedEngine", lambda _: engine)
    response_id = await queued(db, **{"input": [message("Hi")], **request})
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    return await whole(db, response_id)
