"""The engine contract (workers/engine/base.py), kept by one AsyncLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any

from vllm import AsyncEngineArgs
from vllm.exceptions import VLLMClientError, VLLMError

from app.heavy import off_loop
from app.protocol.events.deltas import FinishReason
from app.protocol.types import Json
from config.models import ServedModel
from config.settings import ConfigError
from config.shaping.proof import Proof
from workers.engine.base import (
    EngineDead,
    EngineDelta,
    EngineError,
    InvalidPrompt,
    InvalidSampling,
    Message,
    Prompt,
    PromptTooLong,
    Sampling,
)
from workers.engine.lifeline import CPU_NICENESS, Lifeline
from workers.engine.output_format import Decoder, OutputFormat, OutputSpec, Structured
from workers.engine.scratch import Scratch
from workers.engine.vllm.arguments import engine_args
from workers.engine.vllm.compat import machine, processes
from workers.engine.vllm.cpu_executor import compute_threads
from workers.engine.vllm.decoder import VllmDecoder
from workers.engine.vllm.errors import error_message, sampling_message
from workers.engine.vllm.generation import Generation
from workers.engine.vllm.grammars import grammar
from workers.engine.vllm.grammars.harmony import structured
from workers.engine.vllm.loading import Loaded, load
from workers.engine.vllm.sampling import has_state

_KILL_INTERVAL = 0.1
"""Seconds between attempts to end an engine that is still starting."""
_GONE_SECONDS = 10.0
"""How long to wait for the kernel to remove killed processes: a large one takes its time."""
_DEAD = "the engine has died"


class VllmEngine:
    """One AsyncLLM. A lifeline (`lifeline.py`) ties vLLM's processes to this one."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._lifeline = Lifeline(CPU_NICENESS if self.on_cpu else 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")  # one for life: the lifeline depends on it
        self._scratch = Scratch()  # for vLLM's sockets, which it leaves behind
        self._stopping = asyncio.Lock()
        self._launch: asyncio.Future[Loaded] | None = None
        self._loaded: Loaded | None = None
        self._streams: set[str] = set()

    @property
    def context_length(self) -> int:
        return processes.context_length(self._llm())

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
    def proof(self) -> Proof:
        return self._alive().rendering.proof

    @property
    def efforts(self) -> Mapping[str, str | None] | None:
        return self._alive().rendering.efforts

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
        await asyncio.to_thread(loaded.probe.close)
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

    async def render(
        self,
        messages: Sequence[Message],
        template_args: Mapping[str, Any],
        tools: Sequence[Json] = (),
        cache_salt: str | None = None,
    ) -> Prompt:
        if not messages:
            raise InvalidPrompt("there are no messages")
        rendering = self._alive().rendering
        try:
            prompt = await rendering.render(messages, template_args, tools, cache_salt)
        except EngineError:
            raise
        except Exception as error:  # a chat template is a program, and so is an image decoder
            failure = self._failure(error, "the messages cannot be rendered: ")
            refused = isinstance(failure, EngineError) and rendering.is_callers_fault(error, messages)
            raise (InvalidPrompt(str(failure)) if refused else failure) from None
        self._room(prompt)
        return prompt

    async def output_format(self, spec: OutputSpec) -> OutputFormat:
        loaded = self._alive()
        made = await loaded.formats.output_format(spec)
        if made.structured is None:
            return made
        return made.with_grammar(await grammar.tried(made.structured, loaded.probe))

    async def harmony_grammar(self, spec: OutputSpec) -> Structured | None:
        probe = self._alive().probe
        size = grammar.size_of(spec)
        parts = await grammar.parts_of(spec, size, probe, every_tool=spec.forced)
        if not spec.tools and spec.text_format["type"] == "text":
            return structured(spec, parts)
        made = await off_loop(partial(structured, spec, parts), size, slow=True)
        return None if made is None else await grammar.tried(made, probe)

    def decoder(self) -> Decoder:
        return VllmDecoder(self._alive().tokenizer)

    async def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        priority: int = 0,
        committed: Sequence[int] = (),
        tokens_per_delta: int = 1,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[EngineDelta]:
        loaded, room = self._alive(), self._room(prompt)
        loaded.check(sampling)
        generation = Generation(prompt, sampling, committed, room, can_force=loaded.can_force, logprobs=loaded.logprobs)
        generation.params.stream_interval = tokens_per_delta
        adapter = loaded.adapter(sampling.adapter)
        if request_id in self._streams:
            raise EngineError(f"request {request_id} is already running")
        if generation.is_over:
            yield EngineDelta((), FinishReason.LENGTH)
            return
        self._streams.add(request_id)
        try:
            async with loaded.masks.held(generation.cost):
                outputs = loaded.llm.generate(
                    generation.input,
                    generation.params,
                    request_id,
                    priority=priority,
                    lora_request=adapter,
                    trace_headers=trace_headers if loaded.traces else None,
                    **generation.reasoning,
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        if (delta := generation.delta(output)) is not None:
                            yield delta
        except VLLMClientError as error:
            raise InvalidSampling(sampling_message(error)) from None
        except VLLMError as error:
            raise self._failure(error, counts=True) from None
        finally:
            self._streams.discard(request_id)

    def can_continue(self, sampling: Sampling) -> bool:
        return self._alive().can_force or not has_state(sampling)

    async def check(self) -> None:
        self._alive()

    def _alive(self) -> Loaded:
        if self._loaded is None or processes.is_dead(self._loaded.llm):
            raise EngineDead(_DEAD if self._loaded else "the engine is not running")
        return self._loaded

    def _llm(self) -> processes.AsyncLLM:
        return self._alive().llm

    def _room(self, prompt: Sequence[int]) -> int:
        """Output tokens that fit after `prompt`."""
        if not prompt:
            raise EngineError("the prompt is empty")
        room = self.context_length - len(prompt)
        if room < 1:
            raise PromptTooLong(len(prompt), self.context_length)
        return room

    def _failure(self, error: Exception, prefix: str = "", *, counts: bool = False) -> EngineError | EngineDead:
        if isinstance(error, processes.EngineDeadError) or self._loaded is None or processes.is_dead(self._loaded.llm):
            return EngineDead(_DEAD, counts=counts)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return EngineError(prefix + error_message(cause))
