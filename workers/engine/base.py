"""The engine contract: token ids in, token ids out. `vllm` and `scripted` keep it alike.

One engine serves one model on the worker's event loop. It knows nothing of responses, events or
Postgres. Text is not its business while it generates: the worker decodes and parses the token ids
itself (`output_format`), so that what was said is a function of the whole token list, and a second worker
that is given the same tokens comes to the same characters (law 3, resume).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.protocol.events.deltas import FinishReason
from workers.engine.output_format import Decoder, Json, OutputFormat, OutputSpec, Structured

Message = Mapping[str, Any]
"""A chat message as chat templates take it: role, content (text or parts), tool_calls, reasoning, ..."""


class EngineError(Exception):
    """The engine could not serve this one request; others are not concerned."""


class PromptTooLong(EngineError):
    """The rendered prompt leaves no room for an answer."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the input has {tokens} tokens, but the model's context holds {limit}")
        self.tokens = tokens
        self.limit = limit


class InvalidSampling(EngineError):
    """The engine refuses a parameter; the message names it as its sender wrote it."""


class CannotContinue(EngineError):
    """The request cannot go on behind tokens that another engine generated for it."""

    def __init__(self) -> None:
        super().__init__("its worker stopped, and this engine cannot go on exactly where it stopped")


class EngineDead(Exception):
    """The engine is gone for good (its process died, the device is poisoned): leave it."""


class Prompt(tuple[int, ...]):
    """A prompt's token ids. `media` is what else the engine found in the messages (images), in its own form."""

    media: Any = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, in engine words.

    `max_tokens` counts output tokens; None: as many as the context holds.
    `extra` holds vLLM's own parameters by name (`top_k`, `seed`, `ignore_eos`, ...).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    """How many of the likeliest tokens are reported beside the chosen one; None: no log probabilities at all."""
    structured: Structured | None = None
    adapter: str | None = None
    """A LoRA adapter's model name; None: the model itself."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """The tokens that came since the last delta; may hold several, and none only with a finish reason.

    An end-of-turn token is among `token_ids`. `finish_reason` is set on the last delta, and only there.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the engine's prefix cache."""
    logprobs: tuple[Json, ...] = ()
    """One for each token, where asked for: `{token, bytes, logprob, top_logprobs: [{token, bytes, logprob}]}`."""


class Engine(Protocol):
    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together."""

    async def start(self) -> None:
        """Loads the model; raises ConfigError or EngineDead with a message fit for an operator."""

    async def stop(self) -> None:
        """Ends the engine and every process of it. May be called twice."""

    async def render(
        self, messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Json] = ()
    ) -> Prompt:
        """The prompt's token ids by the model's chat template, off the event loop where that takes its time.

        `tools` are functions as chat templates take them. Raises PromptTooLong where not even one output
        token would fit, EngineError where the template refuses the messages.
        """

    async def output_format(self, spec: OutputSpec) -> OutputFormat:
        """How the model answers in this form. Raises InvalidSampling where it cannot, naming the field."""

    async def harmony_grammar(self, spec: OutputSpec) -> Structured | None:
        """What holds an answer in harmony to this form, whose tools are named as calls name them (`functions.f`,
        `python`); None where nothing has to. Raises InvalidSampling where nothing can, naming the field."""

    def decoder(self) -> Decoder:
        """A fresh decoder that skips special tokens."""

    def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        priority: int = 0,
        committed: Sequence[int] = (),
    ) -> AsyncGenerator[EngineDelta]:
        """Generates; deltas that the caller was too slow for come merged into one.

        `request_id` must not be running. `priority`: lower goes first, where the engine's scheduler is told
        to care. `committed` are output tokens that are there already (from an engine that is gone): what
        comes is what would have come behind them, and they count in `max_tokens`, `min_tokens` and penalties,
        in a seed's draws and in a grammar as if generated here. They are not delivered again.
        Closing the iterator (or cancelling its consumer) aborts the request and frees its slot.
        Raises InvalidSampling, CannotContinue, EngineError or EngineDead.
        """

    async def check(self) -> None:
        """Raises EngineDead where the engine can serve nothing any more."""

    @property
    def running(self) -> int:
        """Requests that are in the engine now."""
