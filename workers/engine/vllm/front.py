"""All of a model that needs its files and no engine: its prompts, parsers and grammars.

An AsyncLLM of ours has one, and so has a worker whose engine is a server elsewhere (`workers.engine.server`): each is a
`FrontedEngine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.heavy import off_loop
from app.protocol.types import Json
from config.families import first_shaping
from config.models import ServedModel
from config.settings import ConfigError
from config.shaping.proof import Proof
from workers.engine.base import EngineError, EngineRequest, InvalidPrompt, Message, Prompt, PromptTooLong, Sampling
from workers.engine.grammar_probe import GrammarProbe
from workers.engine.mask_budget import MaskBudget
from workers.engine.output_format import Decoder, OutputFormat, OutputSpec, Structured
from workers.engine.vllm.arguments import engine_args
from workers.engine.vllm.checked_request import CheckedRequest
from workers.engine.vllm.compat import configuration, machine, processes
from workers.engine.vllm.compat.renderer import NoEngine
from workers.engine.vllm.decoder import VllmDecoder
from workers.engine.vllm.errors import error_message
from workers.engine.vllm.grammars import grammar
from workers.engine.vllm.grammars.harmony import structured
from workers.engine.vllm.logprobs import LogprobReader
from workers.engine.vllm.output.output_format import OutputFormats
from workers.engine.vllm.rendering import Rendering
from workers.engine.vllm.sampling import check_bad_words, check_stop_tokens, has_state


@dataclass(frozen=True, slots=True)
class Front:
    """The parts of a `FrontedEngine`."""

    context_length: int
    rendering: Rendering
    formats: OutputFormats
    logprobs: LogprobReader
    probe: GrammarProbe
    masks: MaskBudget
    tokenizer: Any
    end_tokens: frozenset[int]
    llm: processes.AsyncLLM | NoEngine

    def close(self) -> None:
        """Ends what `load_front` began. Blocks."""
        self.probe.close()
        if isinstance(self.llm, NoEngine):
            self.llm.close()

    def room(self, prompt: Sequence[int]) -> int:
        """Output tokens that fit after `prompt`. Raises PromptTooLong, or EngineError for an empty one."""
        if not prompt:
            raise EngineError("the prompt is empty")
        room = self.context_length - len(prompt)
        if room < 1:
            raise PromptTooLong(len(prompt), self.context_length)
        return room

    def check_size(self, sampling: Sampling) -> None:
        """Raises InvalidSampling for more than the engine holds."""
        check_stop_tokens(sampling, self.end_tokens)
        check_bad_words(sampling, self._count)

    def _count(self, texts: list[str]) -> int:
        """Counts in one call: a call for each takes 60 ms for a thousand words."""
        return sum(map(len, self.tokenizer(texts, add_special_tokens=False)["input_ids"]))


class FrontedEngine(ABC):
    """An engine that does by its front all that needs no engine. See `workers.engine.base.Engine`."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._streams: set[str] = set()

    @property
    @abstractmethod
    def front(self) -> Front:
        """Raises EngineDead while the engine does not run."""

    @property
    @abstractmethod
    def can_force(self) -> bool:
        """Whether committed tokens can be forced through its sampler. Raises EngineDead while it does not run."""

    @property
    def context_length(self) -> int:
        return self.front.context_length

    @property
    def proof(self) -> Proof:
        return self.front.rendering.proof

    @property
    def efforts(self) -> Mapping[str, str | None] | None:
        return self.front.rendering.efforts

    async def render(
        self,
        messages: Sequence[Message],
        template_args: Mapping[str, Any],
        tools: Sequence[Json] = (),
        cache_salt: str | None = None,
    ) -> Prompt:
        front = self.front
        if not messages:
            raise InvalidPrompt("there are no messages")
        try:
            prompt = await front.rendering.render(messages, template_args, tools, cache_salt)
            front.room(prompt)
        except Exception as error:
            refusal = await front.rendering.refusal(error, messages)
            _ = self.front  # The prompt is not at fault if the engine died meanwhile.
            raise refusal from None
        return prompt

    async def output_format(self, spec: OutputSpec) -> OutputFormat:
        front = self.front
        made = await front.formats.output_format(spec)
        if made.structured is None:
            return made
        return replace(made, structured=await grammar.tried(made.structured, front.probe))

    async def harmony_grammar(self, spec: OutputSpec) -> Structured | None:
        probe, size = self.front.probe, grammar.size_of(spec)
        parts = await grammar.parts_of(spec, size, probe, every_tool=spec.forced)
        if not spec.tools and spec.text_format["type"] == "text":
            return structured(spec, parts)
        made = await off_loop(partial(structured, spec, parts), size, slow=True)
        return None if made is None else await grammar.tried(made, probe)

    def decoder(self) -> Decoder:
        return VllmDecoder(self.front.tokenizer)

    def can_continue(self, sampling: Sampling) -> bool:
        return self.can_force or not has_state(sampling)

    async def check(self) -> None:
        _ = self.front

    def _checked(self, request: EngineRequest, *, reasoner: bool = True) -> CheckedRequest:
        """The request, checked. `reasoner` as in `CheckedRequest`."""
        front, room = self.front, self.front.room(request.prompt)
        front.check_size(request.sampling)
        return CheckedRequest(request, room, can_force=self.can_force, logprobs=front.logprobs, reasoner=reasoner)

    @asynccontextmanager
    async def _running(self, request_id: str, made: CheckedRequest) -> AsyncIterator[None]:
        """Holds what the request takes until the block ends. Raises EngineError if it runs already."""
        if request_id in self._streams:
            raise EngineError(f"request {request_id} is already running")
        self._streams.add(request_id)
        try:
            async with self.front.masks.held(made.cost):
                yield
        finally:
            self._streams.discard(request_id)


def started_probe(config: Any) -> GrammarProbe:
    probe = GrammarProbe(lambda: configuration.xgrammar_vocabulary(config), machine.grammar_cache_bytes() // 2)
    probe.start()
    return probe


def front_of(model: ServedModel, llm: processes.AsyncLLM | NoEngine, probe: GrammarProbe) -> Front:
    """Raises ConfigError if a parser does not fit, and whatever a template raises."""
    rendering = Rendering(
        llm,
        model.chat_template_args,
        first_shaping(model.tool_parser),
        images=model.images,
        by_url=model.upstream is not None,
        proof=model.proof,
    )
    tokenizer, model_config = rendering.tokenizer, processes.model_config_of(llm)
    end_tokens = configuration.end_token_ids(model_config, tokenizer)
    return Front(
        context_length=rendering.context_length,
        rendering=rendering,
        formats=OutputFormats(model, tokenizer, end_tokens, model_config, probe),
        logprobs=LogprobReader(tokenizer),
        probe=probe,
        masks=MaskBudget(machine.grammar_cache_bytes()),
        tokenizer=tokenizer,
        end_tokens=end_tokens,
        llm=llm,
    )


def load_front(model: ServedModel) -> Front:
    """That of a model whose engine is elsewhere. Raises ConfigError. Blocks."""
    try:
        config = configuration.config_of(engine_args(model))
        if model.harmony:
            check_vocabulary(model, configuration.tokenizer_of(config))
        llm = NoEngine(config)
    except ConfigError:
        raise
    except Exception as error:  # a folder or a library may raise anything
        raise ConfigError(f"model {model.name!r}: its tokenizer cannot be loaded: {error_message(error)}") from None
    with ExitStack() as stack:
        stack.callback(llm.close)
        probe = started_probe(config)
        stack.callback(probe.close)
        front = front_of(model, llm, probe)
        stack.pop_all()
    return front


def check_vocabulary(model: ServedModel, tokenizer: Any) -> None:
    """Raises ConfigError unless the model can speak harmony."""
    from workers.engine import harmony_vocabulary  # loads the vocabulary, which other models do not need

    if not harmony_vocabulary.matches(tokenizer):
        raise ConfigError(f"model {model.name!r}: its tokenizer is not that of harmony")
