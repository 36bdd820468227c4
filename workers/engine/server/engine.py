"""The engine contract (workers/engine/base.py), kept by a vLLM server that runs elsewhere.

Prompts, parsers and grammars are made here, as for an engine of our own (`workers.engine.vllm.front`). The server
gets token ids, and gives token ids.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from app.protocol.events.deltas import FinishReason
from config.models import ServedModel
from config.settings import ConfigError
from config.tools import expand_headers
from workers.engine.base import (
    EngineDead,
    EngineDelta,
    EngineRequest,
    InvalidSampling,
    Sampling,
)
from workers.engine.server.client import Client, Unfit, prompt_error, short
from workers.engine.server.frame_size import FrameSize
from workers.engine.server.frames import ErrorFrame
from workers.engine.server.introduction import Server, introduce
from workers.engine.server.request import body_of
from workers.engine.server.watch import Watch
from workers.engine.vllm.compat import machine
from workers.engine.vllm.compat.plugin import longhaul_forcing
from workers.engine.vllm.front import Front, FrontedEngine, load_front

log = logging.getLogger("longhaul.engine")

_PROCESSOR = f"PYTHONPATH={longhaul_forcing.FOLDER} and --logits-processors {longhaul_forcing.IN_SERVER}"


class ServerEngine(FrontedEngine):
    """One vLLM server. It lives on while this engine does not: `stop` ends nothing but our requests."""

    def __init__(self, model: ServedModel) -> None:
        assert model.upstream is not None
        super().__init__(model)
        self._upstream = model.upstream
        self._url = model.upstream.urls[0]
        self._watch: Watch | None = None
        self._frame_size = FrameSize()
        self._front: Front | None = None

    @property
    def front(self) -> Front:
        if self._front is None:
            raise EngineDead("the engine is not running")
        return self._front

    @property
    def can_force(self) -> bool:
        return self._server().can_force

    @property
    def slots(self) -> int:
        return 0 if self._watch is None else self._watch.slots(self._upstream.slots)

    @property
    def cache_tokens(self) -> int | None:
        return self._server().cache_tokens

    @property
    def on_cpu(self) -> bool:
        return False

    @property
    def device(self) -> str | None:
        server = self._server()
        exact = "" if server.can_force else ", without our logits processor"
        return f"{self._url} (vLLM {server.version}{exact})"

    @property
    def running(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        model = self._model
        introduction = partial(introduce, model=model, extra_args=longhaul_forcing.extra_args)
        self._watch = Watch(Client(self._url, self._key()), introduction, lambda: len(self._streams))
        try:
            await self._watch.start()
        except Unfit as error:
            raise ConfigError(f"model {model.name!r}: the server {self._url} does not fit: {error}") from None
        server = self._watch.server
        for line in server.lines(machine.own_version(), _PROCESSOR):
            log.warning("%s: the server %s %s", model.name, self._url, line)
        length = min(server.context_length, model.context_length or server.context_length)
        self._front = await asyncio.to_thread(load_front, replace(model, context_length=length))
        if model.images and not self._front.rendering.can_show_urls:
            raise ConfigError(f"model {model.name!r}: images: its prompts are no text, as a server elsewhere needs it")

    def _key(self) -> str | None:
        """Raises ConfigError if a variable that it names is not set."""
        key = self._upstream.api_key
        return None if key is None else expand_headers({"api_key": key}, os.environ)["api_key"]

    async def stop(self) -> None:
        watch, self._watch = self._watch, None
        front, self._front = self._front, None
        if watch is not None:
            await watch.stop()
        if front is not None:
            await asyncio.to_thread(front.close)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        server, sampling = self._server(), request.sampling
        if sampling.adapter is not None and sampling.adapter not in server.adapters:
            raise InvalidSampling(f"model {sampling.adapter!r} is no adapter of this engine")
        reasoner = self._trusts_reasoner(sampling)
        tokens_per_delta = max(request.tokens_per_delta, self._frame_size.tokens_in(request.seconds_per_delta))
        made = self._checked(replace(request, tokens_per_delta=tokens_per_delta), reasoner=reasoner)
        if made.is_over:
            yield EngineDelta((), FinishReason.LENGTH)
            return
        body = body_of(request.id, made, sampling.adapter or server.name, request.priority if server.by_priority else 0)
        try:
            with self._watching().reaching() as client:
                async with (
                    self._running(request.id, made),
                    aclosing(client.generate(body, request.trace_headers or {})) as pieces,
                    aclosing(self._frame_size.measured(pieces)) as measured,
                ):
                    async for piece in measured:
                        if (delta := made.delta(piece, piece.cached_tokens)) is not None:
                            yield delta
        except ErrorFrame as error:
            if error.code >= 500:
                raise made.aborted("error", short(str(error))) from None
            raise prompt_error(error, len(request.prompt), self.context_length) from None

    async def check(self) -> None:
        await super().check()
        self._watching().check()

    def _trusts_reasoner(self, sampling: Sampling) -> bool:
        """Whether the server's own parser has to find where a grammar begins: that of a model whose thoughts have no
        marks. Nobody can see which parser it has."""
        structured = sampling.structured
        return self._model.reasoning_parser is not None and structured is not None and structured.thoughts is None

    def _watching(self) -> Watch:
        if self._watch is None:
            raise EngineDead("the engine is not running")
        return self._watch

    def _server(self) -> Server:
        return self._watching().server
