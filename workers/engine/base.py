"""The engine contract: token ids in, token ids out. `vllm.py` and `scripted.py` keep it alike.

One engine serves one model on the worker's event loop. It knows nothing of responses, events or
Postgres. Text is not its business while it generates: the worker decodes the token ids itself
(`decoder`), so that text is a function of the whole token list, and a second worker that is given
the same tokens comes to the same characters (law 3, resume).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from app.protocol.deltas import FinishReason

Message = Mapping[str, Any]
"""A chat message as chat templates take it: role, content (text), tool_calls, ..."""


class EngineError(Exception):
    """The engine could not serve this one request; others are not concerned."""


class PromptTooLong(EngineError):
    """The rendered prompt leaves no room for an answer."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the input has {tokens} tokens, but the model's context holds {limit}")
        self.tokens = tokens
        self.limit = limit


class InvalidSampling(EngineError):
    """The engine refuses a sampling parameter; the message names it."""


class EngineDead(Exception):
    """The engine is gone for good (its process died, the device is poisoned): leave it."""


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
    extra: Mapping[str, Any] = field(default_factory=dict)

    def less(self, tokens: int) -> Sampling:
        """The same, after `tokens` output tokens are there already."""
        left = None if self.max_tokens is None else self.max_tokens - tokens
        return replace(self, max_tokens=left)


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """The tokens that came since the last delta; may hold several, and none only with a finish reason.

    An end-of-turn token is among `token_ids`. `finish_reason` is set on the last delta, and only there.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the engine's prefix cache."""


class Decoder(Protocol):
    """Token ids -> text, incrementally; pure but for its own state."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The characters that are certain now: never half a UTF-8 sequence, never a special token."""

    def flush(self) -> str:
        """What was held back, at the end (a cut UTF-8 sequence becomes U+FFFD)."""


class Engine(Protocol):
    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together."""

    async def start(self) -> None:
        """Loads the model; raises ConfigError or EngineDead with a message fit for an operator."""

    async def stop(self) -> None:
        """Ends the engine and every process of it. May be called twice."""

    async def render(self, messages: Sequence[Message], template_args: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt's token ids by the model's chat template, off the event loop.

        Raises PromptTooLong where not even one output token would fit, EngineError where the
        template refuses the messages.
        """

    def decoder(self) -> Decoder:
        """A fresh decoder for one response."""

    def generate(
        self, request_id: str, prompt: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncGenerator[EngineDelta]:
        """Generates; deltas that the caller was too slow for come merged into one.

        `request_id` must not be running. `priority`: lower goes first, where the engine's scheduler is told
        to care. Closing the iterator (or cancelling its consumer) aborts the request and frees its slot.
        Raises InvalidSampling, EngineError or EngineDead.
        """

    async def check(self) -> None:
        """Raises EngineDead where the engine can serve nothing any more."""

    @property
    def running(self) -> int:
        """Requests that are in the engine now."""
