"""A server with vLLM's token route and without a model. It breaks in every way that a server can.

Each answer is the TEXT's tokens. Behind a prompt that ends with the first k of them come the others, as from a greedy
model. With a seed, a token depends on the seed and on how many were drawn before it, so only forced tokens continue it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from app.local.ports import free_port

HOST, NAME = "127.0.0.1", "demo"
TEXT = tuple(range(1000, 1040))
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="demo"}} {running}.0
vllm:num_requests_waiting{{engine="0",model_name="demo"}} {waiting}.0
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="100"}} 1.0
"""

Json = dict[str, Any]


@dataclass
class TokenServer:
    """What it does from now on; `requests` are the bodies so far."""

    can_force: bool = True
    context_length: int = 512
    status: int = 200
    """Status of the route's answers."""
    error: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Frames after which the connection is cut, or (`ends`) the stream ends without a finish reason."""
    ends: bool = False
    error_frame: Json | None = None
    raw: bytes | None = None
    """In place of the first frame."""
    there: asyncio.Event = field(default_factory=asyncio.Event)
    """Without it, it answers nothing at all."""
    pause: asyncio.Event = field(default_factory=asyncio.Event)
    """Without it, an answer stops after its first frame."""
    api_key: str | None = None
    has_route: bool = True
    has_priorities: bool = True
    is_full: bool = False
    """It answers everything with 429 and `headers`."""
    pages: dict[str, str] = field(default_factory=dict)
    """What it answers at these paths instead."""
    asked: list[str] = field(default_factory=list)
    """The paths of all requests so far."""
    adapters: Sequence[str] = ()
    version: str = "0.32.0"
    finish: str = "stop"
    running: int = 0
    waiting: int = 0
    requests: list[Json] = field(default_factory=list)
    aborted: int = 0
    port: int = field(default_factory=free_port)
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def start(self) -> None:
        self.there.set()
        self.pause.set()
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self._plain)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port, reuse_address=True).start()

    async def stop(self) -> None:
        """As if it were killed."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _check(self, request: web.Request) -> None:
        self.asked.append(request.path)
        await self.there.wait()
        if self.is_full:
            raise web.HTTPTooManyRequests(headers=self.headers)
        if request.path in self.pages:
            raise web.HTTPOk(text=self.pages[request.path])
        guarded = request.path.startswith(("/v1", "/inference"))
        if guarded and self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            raise web.HTTPUnauthorized(text='{"error": "Unauthorized"}')

    async def _plain(self, request: web.Request) -> web.Response:
        await self._check(request)
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._check(request)
        return web.Response(text=METRICS.format(running=self.running, waiting=self.waiting))

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        await self._check(request)
        base = {"id": NAME, "root": "/models/demo", "parent": None, "max_model_len": self.context_length}
        return web.json_response({"data": [base, *({"id": each, "parent": NAME} for each in self.adapters)]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        await self._check(request)
        body = await request.json()
        if not self.has_route:
            return web.json_response({"detail": "Not Found"}, status=404)
        is_probe = body["sampling_params"]["max_tokens"] == 2 and body["token_ids"] == [7]
        if not is_probe:
            self.requests.append(body)
        if body["priority"] and not self.has_priorities:
            return web.json_response({"error": {"message": "no priorities", "param": "priority"}}, status=400)
        if self.status != 200:
            return web.json_response({"error": self.error}, status=self.status, headers=self.headers)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        try:
            await self._stream(answer, request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        return answer

    async def _stream(self, answer: web.StreamResponse, request: web.Request, body: Json) -> None:
        if self.error_frame is not None:  # in one write with `raw`
            return await answer.write((self.raw or b"") + _frame({"error": self.error_frame}) + b"data: [DONE]\n\n")
        if self.raw is not None:
            await answer.write(self.raw)
        tokens = self._tokens(body)
        for index, token in enumerate(tokens):
            if index == self.cut_after:
                assert request.transport is not None
                return None if self.ends else request.transport.abort()
            is_last = index == len(tokens) - 1
            reason = (
                None
                if not is_last
                else "length"
                if len(tokens) == body["sampling_params"]["max_tokens"]
                else self.finish
            )
            choice = {"index": 0, "token_ids": [token], "finish_reason": reason, "stop_reason": None, "logprobs": None}
            await answer.write(_frame({"request_id": "generate-tokens-1", "choices": [choice]}))
            await self.pause.wait()
        usage = {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 16}}
        return await answer.write(_frame({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")

    def _tokens(self, body: Json) -> list[int]:
        params, prompt = body["sampling_params"], tuple(body["token_ids"])
        forced = (params.get("extra_args") or {}).get("longhaul_forced", []) if self.can_force else []
        seed = params.get("seed")
        if seed is None:
            known = next(n for n in range(len(TEXT), -1, -1) if prompt[len(prompt) - n :] == TEXT[:n])
            made = list(TEXT[known:])
        else:
            made = [1000 + (seed * 31 + n * 17) % 500 for n in range(len(TEXT))]
        made = [*forced, *made[len(forced) :]]
        return made[: params["max_tokens"]]


def _frame(content: Json) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[TokenServer]:
    server = TokenServer(**changes)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
