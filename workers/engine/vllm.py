"""The real engine: vLLM's AsyncLLM. The only module that imports vLLM; tried with 0.32.

Import it by `make_engine`, which sets the environment that vLLM's import reads.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm import AsyncEngineArgs, SamplingParams
from vllm.exceptions import VLLMClientError, VLLMError
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.renderers.params import ChatParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError

from app.protocol.deltas import FinishReason
from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.base import (
    Decoder,
    EngineDead,
    EngineDelta,
    EngineError,
    InvalidSampling,
    Message,
    PromptTooLong,
    Sampling,
)
from workers.engine.lifeline import CPU_NICENESS, Lifeline
from workers.engine.scratch import Scratch

_CUT_EVERY = 0.1  # seconds between attempts to end an engine that is still starting
_DEAD = "the engine has died"
_FINISH = {"stop": FinishReason.STOP, "repetition": FinishReason.STOP, "length": FinishReason.LENGTH}
_QUIET_ARGS = {"disable_log_stats": True, "enable_log_requests": False, "use_tqdm_on_load": False}
_EXTRAS = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "extra_args",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "min_tokens",
        "repetition_detection",
        "repetition_penalty",
        "seed",
        "stop_token_ids",
        "structured_outputs",
        "thinking_token_budget",
        "top_k",
    }
)
"""What a request may set beside `Sampling`'s own fields. Not: stop strings and logprobs (there is no
detokenizer in the engine), several choices, and what decides the form of the output."""
_MOST = {"top_k": 2**31 - 1, "min_tokens": 2**31 - 1, "seed": 2**63 - 1}
"""Bounds that vLLM does not check: a larger number would break the engine for everybody."""
_PARAMS: TypeAdapter[Any] = TypeAdapter(SamplingParams)


class VllmEngine:
    """One AsyncLLM. vLLM's own processes are tied to this one by a lifeline (`lifeline.py`)."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._lifeline = Lifeline(CPU_NICENESS if current_platform.is_cpu() else 0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")  # the lifeline hangs on it: one for life
        self._scratch = Scratch()  # for vLLM's sockets, which it leaves lying about
        self._stopping = asyncio.Lock()
        self._launch: asyncio.Future[Any] | None = None
        self._llm: AsyncLLM | None = None
        self._streams: set[str] = set()

    @property
    def context_length(self) -> int:
        length: int = self._alive().model_config.max_model_len
        return length

    @property
    def running(self) -> int:
        if self._llm is None or self._llm.errored:
            return 0
        unfinished: int = self._llm.get_num_unfinished_requests()
        return unfinished

    async def start(self) -> None:
        args = _engine_args(self._model)
        self._launch = asyncio.get_running_loop().run_in_executor(self._thread, self._load, args)
        try:
            self._llm = await asyncio.shield(self._launch)
        except asyncio.CancelledError:
            await self.stop()
            raise

    def _load(self, args: AsyncEngineArgs) -> AsyncLLM:
        try:
            os.environ["VLLM_RPC_BASE_PATH"] = str(self._scratch.open())
            with self._lifeline.attached():
                return AsyncLLM.from_engine_args(args)
        except Exception as error:  # whatever a model, a device or a library may come up with
            raise ConfigError(f"model {self._model.name!r}: vLLM cannot start: {_one_line(error)}") from None

    async def stop(self) -> None:
        async with self._stopping:
            try:
                await self._abandon_start()
                await self._shut_down()
            finally:
                self._lifeline.cut()
                self._scratch.remove()
                self._thread.shutdown(wait=False)

    async def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is None:
            return
        llm.output_processor.propagate_error(EngineDeadError())  # it would leave its readers waiting
        if llm.output_handler is not None:
            llm.output_handler.cancel()
        await asyncio.get_running_loop().run_in_executor(self._thread, llm.shutdown)
        llm.engine_core.resources.ctx.destroy()  # ZeroMQ's threads: vLLM leaves them to the collector

    async def _abandon_start(self) -> None:
        launch, self._launch = self._launch, None
        if launch is None:
            return
        while not launch.done():
            self._lifeline.cut()  # the engine cannot be told to give up, but it fails without its processes
            await asyncio.wait({launch}, timeout=_CUT_EVERY)
        if launch.exception() is None:
            self._llm = launch.result()

    async def render(self, messages: Sequence[Message], template_args: Mapping[str, Any]) -> tuple[int, ...]:
        if not messages:
            raise EngineError("there are no messages")
        renderer = self._alive().renderer
        chat = ChatParams(chat_template_kwargs={"add_generation_prompt": True, **template_args})
        tokens = dataclasses.replace(renderer.default_chat_tok_params, max_total_tokens=None)  # we count ourselves
        try:
            _, [prompt] = await renderer.render_chat_async([[dict(message) for message in messages]], chat, tokens)
        except Exception as error:  # a chat template is a program
            raise self._failure(error, "the chat template refuses the messages: ") from None
        self._room(prompt["prompt_token_ids"])
        return tuple(prompt["prompt_token_ids"])

    def decoder(self) -> Decoder:
        return VllmDecoder(self._alive().renderer.get_tokenizer())

    async def generate(
        self, request_id: str, prompt: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[EngineDelta]:
        llm = self._alive()
        params = _sampling_params(sampling, self._room(prompt))
        if request_id in self._streams:
            raise EngineError(f"request {request_id} is already running")
        self._streams.add(request_id)
        try:
            outputs = llm.generate(tokens_input(list(prompt)), params, request_id, priority=priority)
            async with aclosing(outputs):
                async for output in outputs:
                    yield _delta(output)
        except VLLMClientError as error:
            raise InvalidSampling(_one_line(error)) from None
        except VLLMError as error:
            raise self._failure(error) from None
        finally:
            self._streams.discard(request_id)

    async def check(self) -> None:
        self._alive()

    def _alive(self) -> AsyncLLM:
        if self._llm is None or self._llm.errored:
            raise EngineDead(_DEAD if self._llm else "the engine is not running")
        return self._llm

    def _room(self, prompt: Sequence[int]) -> int:
        """Output tokens that fit behind `prompt`."""
        if not prompt:
            raise EngineError("the prompt is empty")
        room = self.context_length - len(prompt)
        if room < 1:
            raise PromptTooLong(len(prompt), self.context_length)
        return room

    def _failure(self, error: Exception, what: str = "") -> EngineError | EngineDead:
        if isinstance(error, EngineDeadError) or self._llm is None or self._llm.errored:
            return EngineDead(_DEAD)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return EngineError(what + _one_line(cause))


class VllmDecoder:
    """vLLM's incremental detokenizer (Rust for fast tokenizers, Python for others), and a flush."""

    def __init__(self, tokenizer: Any) -> None:
        self._stream = IncrementalDetokenizer.from_new_request(tokenizer, _EMPTY_REQUEST)
        self._held: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join([self._next(token_id) for token_id in token_ids])

    def _next(self, token_id: int) -> str:
        self._stream.token_ids.append(token_id)  # the Python one looks there
        text: str = self._stream.decode_next(token_id)
        if text:
            self._held.clear()
        else:
            self._held.append(token_id)
        return text

    def flush(self) -> str:
        held, self._held = self._held, []
        text: str = self._stream.tokenizer.decode(held, skip_special_tokens=True) if held else ""
        return text


_EMPTY_REQUEST = EngineCoreRequest(
    request_id="decoder",
    prompt_token_ids=[],
    mm_features=None,
    sampling_params=SamplingParams(),
    pooling_params=None,
    arrival_time=0.0,
    lora_request=None,
    cache_salt=None,
    data_parallel_rank=None,
)


def _engine_args(model: ServedModel) -> AsyncEngineArgs:
    """Raises ConfigError where the path, a name or a value cannot be used."""
    if model.path.startswith((".", "/")) and not Path(model.path).is_dir():
        raise ConfigError(f"model {model.name!r}: the path {model.path!r} is not a folder")
    _check_names(model)
    args = {**_QUIET_ARGS, **model.engine_args, "model": model.path}
    if model.context_length is not None:
        args["max_model_len"] = model.context_length
    try:
        return AsyncEngineArgs(**args)
    except Exception as error:  # it builds a dozen config objects, each with errors of its own
        raise ConfigError(f"model {model.name!r}: engine_args: {_one_line(error)}") from None


def _check_names(model: ServedModel) -> None:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    instead = {"model": "path", "skip_tokenizer_init": None, "stream_interval": None}
    if model.context_length is not None:
        instead["max_model_len"] = "context_length"
    for name in model.engine_args:
        if name not in known:
            raise ConfigError(f"model {model.name!r}: engine_args: vLLM has no argument {name!r}")
        if name in instead:
            hint = f" ({instead[name]} sets it)" if instead[name] else ""
            raise ConfigError(f"model {model.name!r}: engine_args: {name!r} cannot be set here{hint}")


def _sampling_params(sampling: Sampling, room: int) -> SamplingParams:
    """Deltas of bare token ids; at most `room` of them. Raises InvalidSampling, which names the parameter."""
    for name, value in sampling.extra.items():
        if name not in _EXTRAS:
            raise InvalidSampling(f"{name} is not a sampling parameter of this engine")
        if name in _MOST and isinstance(value, int) and abs(value) > _MOST[name]:
            raise InvalidSampling(f"{name} must be at most {_MOST[name]}")
    try:
        params = _PARAMS.validate_python(
            {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "max_tokens": room if sampling.max_tokens is None else min(sampling.max_tokens, room),
                **sampling.extra,
            }
        )
    except (ValidationError, VLLMError, ValueError, TypeError) as error:
        raise InvalidSampling(_one_line(error)) from None
    params.output_kind = RequestOutputKind.DELTA
    params.detokenize = False
    return params


def _delta(output: Any) -> EngineDelta:
    completion = output.outputs[0]
    reason = completion.finish_reason
    if reason is not None and reason not in _FINISH:
        raise EngineError(f"the engine ended the request: {reason}")
    return EngineDelta(
        token_ids=tuple(completion.token_ids),
        finish_reason=_FINISH[reason] if reason is not None else None,
        cached_tokens=output.num_cached_tokens or 0,
    )


def _one_line(error: Exception) -> str:
    return " ".join(_said(error).split())


def _said(error: Exception) -> str:
    """What an error says to a user; of pydantic's several complaints, one that names a field."""
    if isinstance(error, ValidationError):
        details = max(error.errors(include_url=False, include_input=False), key=lambda each: len(each["loc"]))
        field = next((f"{part}: " for part in details["loc"] if str(part).isidentifier()), "")
        return field + details["msg"].removeprefix("Value error, ")
    if isinstance(error, VLLMError) and error.args:
        return str(error.args[0])  # str() of it repeats the parameter and its value
    if isinstance(error, ValueError | RuntimeError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"
