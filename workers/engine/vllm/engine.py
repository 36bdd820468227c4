"""The engine contract (workers/engine/base.py), kept by one AsyncLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from vllm import AsyncEngineArgs
from vllm.exceptions import VLLMClientError, VLLMError

from app.protocol.events.deltas import FinishReason
from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.base import (
    EngineDead,
    EngineDelta,
    EngineError,
    EngineRequest,
    InvalidSampling,
)
from workers.engine.lifeline import CPU_NICENESS, Lifeline
from workers.engine.scratch import Scratch
from workers.engine.vllm.arguments import engine_args
from workers.engine.vllm.compat import machine, processes
from workers.engine.vllm.cpu_executor import compute_threads
from workers.engine.vllm.errors import error_message, sampling_message
from workers.engine.vllm.front import Front, FrontedEngine
from workers.engine.vllm.loading import Loaded, load

_KILL_INTERVAL = 0.1
"""Seconds between attempts to end an engine that is still starting."""
_GONE_SECONDS = 10.0
"""How long to wait for the kernel to remove killed processes: a large one takes its time."""
_DEAD = "the engine has died"


class VllmEngine(FrontedEngine):
    """One AsyncLLM. A lifeline (`lifeline.py`) ties vLLM's processes to this one."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self._lifeline = Lifeline(CPU_NICENESS if self.on_cpu else 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")  # one for life: the lifeline depends on it
        self._scratch = Scratch()  # for vLLM's sockets, which it leaves behind
        self._stopping = asyncio.Lock()
        self._launch: asyncio.Future[Loaded] | None = None
        self._loaded: Loaded | None = None

    @property
    def front(self) -> Front:
        return self._alive().front

    @property
    def can_force(self) -> bool:
        return self._alive().can_force

    @property
    def slots(self) -> int:
        return processes.requests_at_once(self._llm())

    @property
    def cache_tokens(self) -> int | None:
        return processes.cache_tokens(self._llm())

    @property
    def on_cpu(self) -> bool:
        return machine.runs_on_cpu()

    @property
    def device(self) -> str | None:
        return processes.device_name(self._llm())

    @property
    def running(self) -> int:
        if self._loaded is None or processes.is_dead(self._loaded.llm):
            return 0
        return processes.unfinished(self._loaded.llm)

    async def start(self) -> None:
        args = engine_args(self._model)
        self._launch = asyncio.get_running_loop().run_in_executor(self._thread, self._load, args)
        try:
            self._loaded = await asyncio.shield(self._launch)
        except asyncio.CancelledError:
            await self.stop()
            raise

    def _load(self, args: AsyncEngineArgs) -> Loaded:
        try:
            machine.set_socket_folder(self._scratch.open())
            with compute_threads(args), self._lifeline.attached():
                return load(self._model, args)
        except ConfigError:
            raise
        except Exception as error:  # a model, a device or a library may raise anything
            if processes.was_killed(error):
                raise EngineDead(f"model {self._model.name!r}: its engine was killed while it started") from None
            raise ConfigError(f"model {self._model.name!r}: vLLM cannot start: {error_message(error)}") from None

    async def stop(self) -> None:
        async with self._stopping:
            try:
                await self._abandon_start()
                await self._shut_down()
            finally:
                await self._kill()
                self._scratch.remove()
                self._thread.shutdown(wait=False)

    async def _shut_down(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        await asyncio.to_thread(loaded.front.close)
        processes.end_streams(loaded.llm)
        await self._kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, processes.shut_down, loaded.llm)
        processes.end_zeromq(loaded.llm)

    async def _kill(self) -> None:
        """Ends the engine's processes, which hear no other signal and have nothing to save."""
        self._lifeline.kill()
        await asyncio.to_thread(self._lifeline.wait_until_gone, _GONE_SECONDS)

    async def _abandon_start(self) -> None:
        launch, self._launch = self._launch, None
        if launch is None:
            return
        while not launch.done():
            self._lifeline.kill()  # vLLM has no way to abandon a start, but it fails without its processes
            await asyncio.wait({launch}, timeout=_KILL_INTERVAL)
        if launch.exception() is None:
            self._loaded = launch.result()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        loaded = self._alive()
        made = self._checked(request)
        adapter = loaded.adapter(request.sampling.adapter)
        if made.is_over:
            yield EngineDelta((), FinishReason.LENGTH)
            return
        try:
            async with self._running(request.id, made):
                outputs = loaded.llm.generate(
                    made.input,
                    made.params,
                    request.id,
                    priority=request.priority,
                    lora_request=adapter,
                    trace_headers=request.trace_headers if loaded.traces else None,
                    **made.reasoning,
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        if (delta := made.delta(output.outputs[0], output.num_cached_tokens or 0)) is not None:
                            yield delta
        except VLLMClientError as error:
            raise InvalidSampling(sampling_message(error)) from None
        except VLLMError as error:
            raise self._failure(error) from None

    def _alive(self) -> Loaded:
        if self._loaded is None or processes.is_dead(self._loaded.llm):
            raise EngineDead(_DEAD if self._loaded else "the engine is not running")
        return self._loaded

    def _llm(self) -> processes.AsyncLLM:
        return self._alive().llm

    def _failure(self, error: Exception) -> EngineError | EngineDead:
        if isinstance(error, processes.EngineDeadError) or self._loaded is None or processes.is_dead(self._loaded.llm):
            return EngineDead(_DEAD, counts=True)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return EngineError(error_message(cause))
