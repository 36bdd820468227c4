"""The engine contract: token ids in, token ids out. vLLM keeps it, and the tests have a scripted engine that does.

One engine serves one model on the worker's event loop. It knows nothing of responses, events or Postgres. It generates
token ids, not text: the worker decodes and parses them with the engine's output format. So the text is a function of
the whole token list, and a second worker that gets the same tokens reads the same characters, and can resume.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from app.protocol.errors import InvalidRequest
from app.protocol.events.deltas import FinishReason
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS, Extras
from app.protocol.requests.validation import validate
from app.protocol.types import Json
from app.sizes import LARGE_BYTES
from config.shaping.proof import Proof
from config.shaping.shape import Message as Message
from workers.engine.output_format import Decoder, OutputFormat, OutputSpec, Structured

_CUT_TOKENS = 16
"""More than a cut between two pieces of a text adds to its tokens."""


class EngineError(Exception):
    """The engine could not serve this one request; other requests are not affected."""

    code: ClassVar[str] = "server_error"
    """The code that the caller is shown, in the error of the failed response."""


class PromptTooLong(EngineError):
    """The rendered prompt leaves no room for an answer, or, with `leaves_room`, too little. `tokens` is None if nobody
    counted them all."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int | None, limit: int, *, leaves_room: bool = False) -> None:
        counted = f"more than {limit}" if tokens is None else tokens
        holder = "beside its answer the model's context" if leaves_room else "the model's context"
        super().__init__(f"the input has {counted} tokens, but {holder} holds {limit}")
        self.tokens = tokens
        self.limit = limit


def check_length(texts: Iterable[str], count: Callable[[str], int], limit: int) -> None:
    """Raises PromptTooLong if a prompt with all of these texts has more than `limit` tokens for certain.

    The tokens of 8 MB take seconds and a gigabyte. `count` gets pieces, and no more of them than are needed to tell.
    """
    tokens = 0
    for text in texts:
        for start in range(0, len(text), LARGE_BYTES):
            tokens += count(text[start : start + LARGE_BYTES]) - (_CUT_TOKENS if start else 0)
            if tokens > limit:
                raise PromptTooLong(None, limit)


class InvalidPrompt(EngineError):
    """The caller is at fault: the chat template refuses the messages, or an image cannot be read, whose URL this is."""

    code = "invalid_prompt"

    def __init__(self, message: str, image: str | None = None) -> None:
        super().__init__(message)
        self.image = image


class InvalidSampling(EngineError):
    """The engine refuses a parameter; the message names it as the client wrote it."""

    code = "invalid_prompt"


class CannotContinue(EngineError):
    """The request cannot continue after tokens that another engine generated for it."""

    def __init__(self) -> None:
        super().__init__("its worker stopped, and this engine cannot go on exactly where it stopped")


class RequestAborted(Exception):
    """The engine ended the request, and nobody asked it to. That is no answer: another attempt goes on behind it.

    `counts`: the request itself may be why, so it counts as a crash of the engine. `refusal`: the attempt added
    nothing, so if an attempt before it ended so too, this is why.
    """

    def __init__(self, reason: str, *, counts: bool = False, refusal: InvalidSampling | None = None) -> None:
        super().__init__(reason)
        self.counts = counts
        self.refusal = refusal


class EngineDead(Exception):
    """The engine is gone for good: its process died, or the device fails. Make a new one.

    `counts`: it died while it had the request. The request itself may be why, so it counts as a crash of the engine.
    """

    def __init__(self, reason: str, *, counts: bool = False) -> None:
        super().__init__(reason)
        self.counts = counts


class EngineAway(EngineDead):
    """The engine cannot be reached, or is full, and comes back by itself: its worker stays, and takes nothing
    meanwhile (`Engine.slots`)."""


class Prompt(tuple[int, ...]):
    """A prompt's token ids. `media` holds the images of the messages in the engine's own form, if there are any."""

    media: Any = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request, by the engine's names.

    `max_tokens` counts output tokens; None: as many as the context holds.
    `extra` holds vLLM's own parameters by name (`top_k`, `seed`, `ignore_eos`, ...).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    """How many of the likeliest tokens are reported besides the chosen one; None: no log probabilities at all."""
    structured: Structured | None = None
    adapter: str | None = None
    """A LoRA adapter's model name; None: the model itself."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to an engine: a prompt, and how its output is to be made and delivered."""

    id: str
    """No request with this id may be running."""
    prompt: Sequence[int]
    sampling: Sampling
    committed: Sequence[int] = ()
    """Output tokens of an engine that is gone. The output continues after them, and they count in `max_tokens`,
    `min_tokens`, penalties, a seed's draws and a grammar as if generated here; they are not delivered again."""
    tokens_per_delta: int = 1
    """The engine may gather up to so many tokens for each delta but the first."""
    seconds_per_delta: float = 0.0
    """Seconds for which the caller leaves each delta but the first: an engine to which each delta costs something may
    gather the tokens of this time."""
    trace_headers: Mapping[str, str] | None = None
    """They name the trace that an engine with a tracer adds its spans to."""
    priority: int = 0
    """A lower number goes first, if the engine's scheduler is configured for it."""


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """The tokens since the last delta: one or more, or none if there is a finish reason.

    An end-of-turn token is among `token_ids`. Only the last delta has a `finish_reason`.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the engine's prefix cache."""
    logprobs: tuple[Json, ...] = ()
    """One for each token, if requested: `{token, bytes, logprob, top_logprobs: [{token, bytes, logprob}]}`."""


class Engine(Protocol):
    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together."""

    @property
    def slots(self) -> int:
        """Requests that generate at once, once the engine has started; more wait in it, in the order of arrival.

        Fewer while others use the engine, too, and 0 while it is away.
        """

    @property
    def cache_tokens(self) -> int | None:
        """Tokens of all requests together that its cache holds, once the engine has started; None: it cannot say."""

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on the CPU, which the worker and other programs need as well."""

    @property
    def device(self) -> str | None:
        """The name of its devices, for operators (`NVIDIA H100 80GB HBM3`, `2 x ...`); None: it cannot say."""

    @property
    def proof(self) -> Proof:
        """How messages have to be shaped for `render`, and which orders it refuses."""

    @property
    def efforts(self) -> Mapping[str, str | None] | None:
        """What becomes of each `reasoning.effort` in `render`: the effort that it is, or None if it changes nothing.
        One that is refused is not there. None: not known."""

    async def start(self) -> None:
        """Loads the model. Raises ConfigError or EngineDead, with a message for the operator."""

    async def stop(self) -> None:
        """Ends the engine and all its processes. May be called twice."""

    async def render(
        self,
        messages: Sequence[Message],
        template_args: Mapping[str, Any],
        tools: Sequence[Json] = (),
        cache_salt: str | None = None,
    ) -> Prompt:
        """The prompt's token ids, by the model's chat template; slow templates do not block the event loop.

        `tools` are functions as chat templates take them. What the engine keeps of images, it finds again only under
        the same `cache_salt`. Raises PromptTooLong if not even one output token would
        fit, InvalidPrompt if the template refuses the messages or an image cannot be read.
        """

    async def output_format(self, spec: OutputSpec) -> OutputFormat:
        """The model's output format for a request. Raises InvalidSampling, which names the field that it cannot do.

        Projects take turns, and a caller that is cancelled ends the work.
        """

    async def harmony_grammar(self, spec: OutputSpec) -> Structured | None:
        """The grammar of an answer in harmony; None if nothing has to be enforced.

        `spec` names tools as calls name them (`functions.f`, `python`). Raises InvalidSampling, which names the field,
        if it cannot be enforced.
        """

    def decoder(self) -> Decoder:
        """A fresh decoder that skips special tokens."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        """Generates. For a slow reader, several deltas come merged into one.

        Closing the iterator, or cancelling its consumer, aborts the request and frees its slot. Raises InvalidSampling,
        CannotContinue, EngineError, RequestAborted or EngineDead.
        """

    def can_continue(self, sampling: Sampling) -> bool:
        """Whether `generate` can go on behind committed tokens of such a request: else it raises CannotContinue."""

    async def check(self) -> None:
        """Raises EngineDead if the engine cannot serve requests any more."""

    @property
    def running(self) -> int:
        """Requests that are in the engine now."""


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raises InvalidSampling, which names the first parameter that no engine takes, or that is out of its range.

    The lengths of lists are not checked here: a format may have added stop tokens to those of the request.
    """
    for name in extra:
        if name not in ENGINE_PARAMS or ENGINE_PARAMS[name].reader == "worker":
            raise InvalidSampling(f"{name} is not a sampling parameter of this engine, or not in this worker's version")
    try:
        validate(Extras, {name: value for name, value in extra.items() if not isinstance(value, list)})
    except InvalidRequest as error:
        raise InvalidSampling(f"{error.error.param}: {error.error.message}") from None
