"""The scripted engine where its tokens come from a server (server.py), by the client and the watch of the product."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from app.protocol.events.deltas import FinishReason
from config.models import ServedModel
from tests.support.scripted.engine import ScriptedEngine
from workers.engine.base import EngineDelta, EngineError, EngineRequest, RequestAborted
from workers.engine.server.client import Client
from workers.engine.server.frames import ErrorFrame
from workers.engine.server.introduction import introduce
from workers.engine.server.watch import Watch

URL = "LONGHAUL_TEST_SERVER"
"""The variable that names a worker's server. A worker without one generates by itself."""


class AttachedEngine(ScriptedEngine):
    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self._model = model
        self._watch: Watch | None = None

    @property
    def slots(self) -> int:
        return super().slots if self._watch is None else self._watch.slots(super().slots)

    async def start(self) -> None:
        await super().start()
        if url := os.environ.get(URL):
            introduction = partial(introduce, model=self._model, extra_args=lambda forced, length: {})
            self._watch = Watch(Client(url, None), introduction, lambda: len(self._streams))
            await self._watch.start()

    async def stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()
        await super().stop()

    async def check(self) -> None:
        await super().check()
        if self._watch is not None:
            self._watch.check()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        await self.check()
        if self._watch is None:
            async with aclosing(super().generate(request)) as here:
                async for delta in here:
                    yield delta
            return
        prompt, sampling, committed = request.prompt, request.sampling, request.committed
        left = self._tokens_left(len(prompt))
        most = min(sampling.max_tokens or left, left) - len(committed)
        if most < 1:
            yield EngineDelta((), FinishReason.LENGTH)
            return
        params = {"max_tokens": most, "stream_interval": request.tokens_per_delta, **sampling.extra}
        body = {"token_ids": [*prompt, *committed], "sampling_params": params, "stream": True}
        self._streams.add(request.id)
        try:
            with self._watch.reaching() as client:
                async with aclosing(client.generate(body, {})) as pieces:
                    async for piece in pieces:
                        reason = None if piece.finish_reason is None else FinishReason(piece.finish_reason)
                        yield EngineDelta(tuple(piece.token_ids), reason)
        except ErrorFrame as error:
            kind = RequestAborted if error.code >= 500 else EngineError
            raise kind(str(error)) from None  # as the script has it: no fault of the prompt
        finally:
            self._streams.discard(request.id)
