"""A vLLM server without a model, as a program: vLLM's token route over the scripted engine.

    python -m tests.support.scripted.server PORT ENGINE_ARGS

SIGUSR1: it is full from now on (503); SIGUSR2: it is not. A script that ends the engine ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from itertools import count
from typing import Any

import orjson
from aiohttp import web

from config.models import ServedModel
from tests.support.scripted.engine import ScriptedEngine
from workers.engine.base import EngineDead, EngineDelta, EngineError, EngineRequest, RequestAborted, Sampling

HOST, NAME = "127.0.0.1", "scripted"
MAX_BYTES = 2**28
_TAKEN = ("min_tokens", "ignore_eos")
"""Of the parameters."""


class ScriptedServer:
    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._ids = count()
        self.is_full = False

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_get("/health", self._empty)
        app.router.add_get("/metrics", self._empty)
        app.router.add_get("/version", self._empty)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        return app

    async def _empty(self, _: web.Request) -> web.Response:
        self._check_full()
        return web.Response(text="{}")

    async def _models(self, _: web.Request) -> web.Response:
        self._check_full()
        return web.json_response({"data": [{"id": NAME, "max_model_len": self._engine.context_length}]})

    def _check_full(self) -> None:
        if self.is_full:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "1"})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self._check_full()
        body = await request.json()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionResetError):  # the worker has left
            await answer.prepare(request)
            async for frame in self._frames(body):
                await answer.write(b"data: " + frame + b"\n\n")
        return answer

    async def _frames(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        params = body["sampling_params"]
        sampling = Sampling(
            max_tokens=params["max_tokens"], extra={name: params[name] for name in _TAKEN if name in params}
        )
        tokens_per_delta = params.get("stream_interval", 1)
        request = EngineRequest(str(next(self._ids)), body["token_ids"], sampling, tokens_per_delta=tokens_per_delta)
        deltas = self._engine.generate(request)
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    yield orjson.dumps({"choices": [_choice(delta)]})
        except EngineDead:
            os._exit(1)
        except (EngineError, RequestAborted) as error:
            code = 400 if isinstance(error, EngineError) else 500
            yield orjson.dumps({"error": {"code": code, "message": str(error)}})
        yield b"[DONE]"


def _choice(delta: EngineDelta) -> dict[str, Any]:
    reason = None if delta.finish_reason is None else delta.finish_reason.value
    return {"index": 0, "token_ids": delta.token_ids, "finish_reason": reason}


async def main(port: int, engine_args: dict[str, Any]) -> None:
    """Serves until SIGTERM or SIGINT."""
    engine = ScriptedEngine(ServedModel(NAME, "", NAME, "", engine_args=engine_args))
    await engine.start()
    server, loop, ended = ScriptedServer(engine), asyncio.get_running_loop(), asyncio.Event()
    for number, is_full in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
        loop.add_signal_handler(number, setattr, server, "is_full", is_full)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, port, reuse_address=True).start()
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
