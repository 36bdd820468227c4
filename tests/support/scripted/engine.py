"""An engine without a model: for tests, and for measuring Longhaul without a model's cost.

`script.py` has the replies. The same prompt always gets the same reply, and a prompt that ends with the first k tokens
of its reply gets the rest. Temperature, penalties, grammars and the like are checked but have no effect; `max_tokens`,
`min_tokens` and `ignore_eos` (which repeats the text) work as with vLLM. `Args` lists the `engine_args`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.protocol.events.deltas import FinishReason
from app.protocol.types import Json
from config.models import ServedModel
from config.settings import ConfigError
from config.shaping.proof import AS_IT_IS, Proof
from config.shaping.shape import Shaping
from tests.support.scripted.output_format import ScriptedDecoder, ScriptedOutputFormat, logprob_of
from tests.support.scripted.script import ANSWER, BEGIN, END, Ending, Reply, framed, reply_to, size_of, tokens_of
from workers.engine.base import (
    CannotContinue,
    EngineDead,
    EngineDelta,
    EngineError,
    EngineRequest,
    InvalidPrompt,
    InvalidSampling,
    Message,
    Prompt,
    PromptTooLong,
    RequestAborted,
    Sampling,
    check_extra,
)
from workers.engine.output_format import Decoder, OutputFormat, OutputSpec, Structured

__all__ = ["ANSWER", "BEGIN", "END", "ScriptedEngine"]

T = TypeVar("T")

CONTEXT_LENGTH = 32768
KEPT_PROMPTS = 32
LONG = 16384
"""Tokens of a prompt that is read beside the event loop: these take a millisecond."""
_MAX_SLEEP = 0.2
"""Seconds until a sleeping stream notices that the engine is gone."""
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_tokens": (1, float("inf")),
}


class Args(BaseModel):
    """The arguments that `engine_args` may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens_per_second: Annotated[float, Field(ge=0)] = 0
    """The rate of each stream; 0: as fast as the reader takes them, with a turn of the event loop before each delta."""
    tokens_per_delta: Annotated[int, Field(ge=1)] = 1
    """The fewest tokens of a delta, except the last; a reader slower than the rate gets more."""
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    """Streams that generate at once; further streams wait in order of arrival."""
    strict_template: bool = False
    """Whether it takes messages as strict chat templates do: instructions at the head, and a user's message first."""
    cache_tokens: Annotated[int, Field(ge=1)] | None = None
    """What it says that its cache holds."""
    can_continue: bool = True
    """Whether it goes on behind committed tokens."""
    bytes_per_token: Annotated[int, Field(ge=1, le=4)] = 1
    """Bytes of a prompt's token, as models have three or four; each token of a reply is one byte."""
    keeps_prefixes: bool = False
    """Whether it counts what of a prompt is the beginning of an earlier one as cached, as engines with a cache do."""


STRICT_ORDER = Shaping(begun=True, moved_later=True)


def _check_order(roles: Sequence[str]) -> None:
    """Raises InvalidPrompt where STRICT_ORDER says so."""
    behind_head = roles[1:] if roles[0] == "system" else roles
    if "system" in behind_head or behind_head[:1] != ["user"]:
        raise InvalidPrompt("the template takes instructions at the head alone, and then a user's message")


class EngineState(Enum):
    NEW = "is not running"
    READY = "is ready"
    DEAD = "has died"
    STOPPED = "has stopped"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tokens of one request, by their index in the reply: from `start` to `last`, then the finish `reason`.

    Without a reason, the reply's own ending follows.
    """

    reply: Reply
    start: int
    last: int
    stop_at: int
    """The index of the end token; -1 if there is none."""
    reason: FinishReason | None

    def delta(self, start: int, stop: int, logprobs: int | None, reason: FinishReason | None = None) -> EngineDelta:
        tokens = self.tokens(start, stop)
        found = () if logprobs is None else tuple(logprob_of(token, logprobs) for token in tokens)
        return EngineDelta(tokens, reason, logprobs=found)

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        text = self.reply.tokens or (ord(" "),)
        return tuple(END if index == self.stop_at else text[index % len(text)] for index in range(start, stop))


class ScriptedEngine:
    """See `workers.engine.base.Engine`."""

    def __init__(self, model: ServedModel) -> None:
        try:
            self._args = Args.model_validate(dict(model.engine_args))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"model {model.name!r}: engine_args: {field}: {first['msg']}") from None
        self._name = model.name
        self._adapters = frozenset(adapter.name for adapter in model.adapters)
        self._context_length = model.context_length or CONTEXT_LENGTH
        self._slots = asyncio.Semaphore(self._args.max_num_seqs)
        self._state = EngineState.NEW
        self._ended = asyncio.Event()
        self._streams: set[str] = set()
        self._read: deque[list[int]] = deque(maxlen=KEPT_PROMPTS if self._args.keeps_prefixes else 0)

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def slots(self) -> int:
        return self._args.max_num_seqs

    @property
    def proof(self) -> Proof:
        return Proof(STRICT_ORDER) if self._args.strict_template else AS_IT_IS

    @property
    def efforts(self) -> None:
        return None

    @property
    def cache_tokens(self) -> int | None:
        return self._args.cache_tokens

    def can_continue(self, sampling: Sampling) -> bool:
        return self._args.can_continue

    @property
    def on_cpu(self) -> bool:
        return False

    @property
    def device(self) -> str:
        return "scripted"

    @property
    def running(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        if self._state is EngineState.NEW:
            self._state = EngineState.READY

    async def stop(self) -> None:
        self._end(EngineState.STOPPED)

    def die(self) -> None:
        """Dies, as the process of an engine does."""
        self._end(EngineState.DEAD)

    async def check(self) -> None:
        self._check_state(counts=False)

    def _check_state(self, *, counts: bool) -> None:
        if self._state is not EngineState.READY:
            raise EngineDead(f"the engine {self._state.value}", counts=counts)

    async def render(
        self,
        messages: Sequence[Message],
        template_args: Mapping[str, object],
        tools: Sequence[Json] = (),
        cache_salt: str | None = None,
    ) -> Prompt:
        await self.check()
        if not messages:
            raise InvalidPrompt("there are no messages")
        if self._args.strict_template:
            _check_order([message["role"] for message in messages])
        pieces = framed(messages, template_args, tools)
        each = self._args.bytes_per_token
        size = size_of(pieces, each)
        self._tokens_left(size)
        return await _beside(size, lambda: Prompt(tokens_of(pieces, each)))

    async def output_format(self, spec: OutputSpec) -> OutputFormat:
        return ScriptedOutputFormat(spec)

    async def harmony_grammar(self, spec: OutputSpec) -> Structured | None:
        raise EngineError("the scripted engine does not speak harmony")

    def decoder(self) -> Decoder:
        return ScriptedDecoder()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        await self.check()
        prompt, sampling, committed = request.prompt, request.sampling, request.committed
        if sampling.adapter is not None and sampling.adapter not in self._adapters:
            raise InvalidSampling(f"model {sampling.adapter!r} is no adapter of {self._name!r}")
        if committed and not self.can_continue(sampling):
            raise CannotContinue
        left = self._tokens_left(len(prompt))
        plan = await _beside(len(prompt), lambda: _plan(prompt, committed, sampling, left))
        index, cached = plan.start, self._cached(prompt)
        async with self._slot(request.id):
            began = asyncio.get_running_loop().time()
            size = self._args.tokens_per_delta
            while (stop := await self._wait_until_due(plan, index, began, size)) < plan.last:
                yield replace(plan.delta(index, stop, sampling.logprobs), cached_tokens=cached)
                index, size = stop, max(size, request.tokens_per_delta)
            if plan.reason is None:
                if index < stop:
                    yield plan.delta(index, stop, sampling.logprobs)
                await self._fail(plan.reply.ending)
        yield replace(plan.delta(index, stop, sampling.logprobs, plan.reason), cached_tokens=cached)

    def _cached(self, prompt: Sequence[int]) -> int:
        """The tokens that the prompt begins with as an earlier one did; it is such a one from now on."""
        known = max((_common(prompt, earlier) for earlier in self._read), default=0)
        self._read.append(list(prompt))
        return known

    @asynccontextmanager
    async def _slot(self, request_id: str) -> AsyncIterator[None]:
        if request_id in self._streams:
            raise EngineError(f"request {request_id} is already running")
        self._streams.add(request_id)
        try:
            async with self._slots:
                yield
        finally:
            self._streams.discard(request_id)

    async def _wait_until_due(self, plan: Plan, index: int, began: float, size: int) -> int:
        """Waits until the delta from `index` is due, of `size` tokens or more, and returns the index of its end."""
        loop, rate = asyncio.get_running_loop(), self._args.tokens_per_second
        stop = min(index + size, plan.last)
        await asyncio.sleep(0)
        while rate and (delay := began + (stop - plan.start) / rate - loop.time()) > 0:
            self._check_state(counts=True)
            await asyncio.sleep(min(delay, _MAX_SLEEP))
        self._check_state(counts=True)
        by_now = plan.start + int((loop.time() - began) * rate)
        return min(max(stop, by_now), plan.last)

    async def _fail(self, ending: Ending) -> None:
        if ending is Ending.FAIL:
            raise EngineError("the script fails this request")
        if ending is Ending.ABORT:
            raise RequestAborted("the script aborts this request")
        if ending is Ending.DIE:
            self.die()
        await self._ended.wait()
        self._check_state(counts=True)

    def _end(self, state: EngineState) -> None:
        self._state = state
        self._ended.set()

    def _tokens_left(self, size: int) -> int:
        """The tokens that a prompt of this size leaves. Raises PromptTooLong."""
        left = self._context_length - size
        if left < 1:
            raise PromptTooLong(size, self._context_length)
        return left


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def _beside(size: int, read: Callable[[], T]) -> T:
    """What `read` returns, in a thread if the prompt is long: a real engine does this work elsewhere, too."""
    return read() if size <= LONG else await asyncio.to_thread(read)


def _plan(prompt: Sequence[int], committed: Sequence[int], sampling: Sampling, left: int) -> Plan:
    """Raises InvalidSampling; EngineError if the prompt is not a scripted one, or the tokens are not of its reply."""
    _check(sampling)
    if not prompt:
        raise EngineError("the prompt is empty")
    if ANSWER not in prompt:
        raise EngineError("the prompt asks for no answer")
    answer_at = prompt.index(ANSWER)
    reply = reply_to(prompt[:answer_at])
    if reply.ending is Ending.ABORT and committed:
        reply = replace(reply, ending=Ending.STOP)
    begin = len(prompt) - answer_at - 1
    start, limit = begin + len(committed), begin + min(sampling.max_tokens or left, left)
    stops = reply.ending is Ending.STOP
    stop_at = max(len(reply.tokens), begin + sampling.extra.get("min_tokens", 0)) if stops else -1
    if stops and sampling.extra.get("ignore_eos"):
        stop_at = limit
    own_end = stop_at + 1 if stops else len(reply.tokens)
    if own_end <= limit:
        plan = Plan(reply, start, max(own_end, start), stop_at, FinishReason.STOP if stops else None)
    else:
        plan = Plan(reply, start, max(limit, start), stop_at, FinishReason.LENGTH)
    if tuple(committed) != plan.tokens(begin, start):
        raise EngineError("the committed tokens are not of this reply")
    return plan


def _check(sampling: Sampling) -> None:
    check_extra(sampling.extra)
    for name, (low, high) in _RANGES.items():
        value = getattr(sampling, name)
        if value is None and name == "max_tokens":
            continue
        if not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidSampling(f"{name} must be a number from {low} to {high}")
    if sampling.max_tokens is not None and sampling.extra.get("min_tokens", 0) > sampling.max_tokens:
        raise InvalidSampling("min_tokens must be at most max_tokens")
