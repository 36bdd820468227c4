"""A model's output format, by vLLM's own reasoning and tool parsers.

vLLM's parsers take one of its API's requests and adjust it: the grammar that enforces the requested calls, and whether
special tokens are part of the text. Its streaming parsers are fed token by token; if one differs from its twin for
whole texts, the streaming parser decides.

A grammar gives the sampler a state, so one is made only if something has to be enforced: a schema for the text, a
required or named call, a strict function, a custom tool's grammar, or a choice among the tools that were shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cachetools import LRUCache
from openai.types.responses import FunctionTool, ToolChoiceFunction
from vllm.sampling_params import StructuredOutputsParams

from app.heavy import off_loop
from app.protocol.requests.capabilities import no_tools
from app.protocol.types import Json
from config.models import ServedModel
from workers.engine.base import InvalidSampling
from workers.engine.grammar_probe import GrammarProbe
from workers.engine.output_format import Decoder, OutputParser, OutputSpec, Structured, Tool, ToolChoice
from workers.engine.vllm.compat import parsers
from workers.engine.vllm.decoder import VllmDecoder
from workers.engine.vllm.errors import error_message
from workers.engine.vllm.grammars import calls, grammar
from workers.engine.vllm.grammars.grammar import Parts
from workers.engine.vllm.output.output_parser import PlainParser, VllmOutputParser, parser_class
from workers.engine.vllm.output.parameters import readable as as_readable
from workers.engine.vllm.output.thoughts import FreeParser, Start, Thoughts, thoughts_args

MAX_CACHED = 64
MAX_CACHED_CHARS = 20_000
"""A longer request, with its tools and schemas as text, is not cached."""


class OutputFormats:
    """Makes a model's output formats. Raises ConfigError if a parser is unknown or does not fit the tokenizer."""

    def __init__(
        self, model: ServedModel, tokenizer: Any, end_tokens: frozenset[int], model_config: Any, probe: GrammarProbe
    ) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._markers = frozenset(tokenizer.get_added_vocab().values()) - end_tokens
        self._model_config = model_config
        self._probe = probe
        self._tool_parser = model.tool_parser
        self._no_tools = None if model.proof is None else model.proof.no_tools
        self._classes = {
            tools: parser_class(model, tokenizer, model.reasoning_parser, tools) for tools in (None, model.tool_parser)
        }
        self._cache: LRUCache[str, VllmOutputFormat] = LRUCache(MAX_CACHED)
        """By the text of what a request asks: most requests ask for the same few things."""

    async def output_format(self, spec: OutputSpec) -> VllmOutputFormat:
        """Raises InvalidSampling."""
        if spec.choice is not ToolChoice.NONE and self._tool_parser is None:
            raise InvalidSampling(f"tools: this model {no_tools(self._no_tools)}")
        size = grammar.size_of(spec)
        key = repr(spec) if size <= MAX_CACHED_CHARS else ""
        if (found := self._cache.get(key)) is not None:
            return found
        parts = await grammar.parts_of(spec, size, self._probe, every_tool=calls.is_enforced(spec))
        made = await off_loop(partial(self.make, spec, parts), size, slow=True)
        if key:
            self._cache[key] = made
        return made

    def free(self, spec: OutputSpec) -> VllmOutputFormat:
        """The format for a spec that enforces nothing."""
        return self.make(spec, Parts())

    def make(self, spec: OutputSpec, parts: Parts) -> VllmOutputFormat:
        """The format whose grammars are of these parts."""
        functions = _functions(spec, parts)
        readable = [each.model_copy(update={"parameters": as_readable(each.parameters or {})}) for each in functions]
        tools = [parsers.chat_tool(each) for each in readable]
        make_parser = partial(self._parser, spec, tools)
        thoughts = self._thoughts(make_parser(Start.FREE))
        parser, request = make_parser(Start.CLOSED), _request(spec, functions)
        native, can_list, special, barred = None, False, spec.special_tokens, frozenset[int]()
        if parser is not None:
            special = special or parsers.shows_special_tokens(parser, request)
            if spec.choice is not ToolChoice.NONE:
                native, can_list = _native(parser, request, spec), parsers.can_read_list(parser)
            barred = parsers.implicit_ends(parser) if native is None else barred
        answer, listed = calls.answer_format(native, spec, parts, can_list=can_list)
        tag = None if answer is None else grammar.tag_of(answer)
        changes: dict[str, Any] = {"tools": tools} | ({"tool_choice": ToolChoice.REQUIRED.value} if listed else {})
        if tag is not None:
            changes["structured_outputs"] = StructuredOutputsParams(structural_tag=tag)
        return VllmOutputFormat(
            make_parser=make_parser,
            thoughts=thoughts,
            request=request.model_copy(update=changes),
            structured=None
            if tag is None
            else Structured(tag, spec.grammar_field, spec.template_args, barred, thoughts),
            tokenizer=self._tokenizer,
            end_tokens=self._end_tokens | frozenset(spec.stop_tokens),
            markers=self._markers,
            special=special,
            listed=listed,
        )

    def _thoughts(self, parser: parsers.Parser | None) -> Thoughts | None:
        """None: the model has none, or its parser finds them without marks."""
        marks = parsers.reasoning_marks(parser) if parser is not None else None
        return None if marks is None else Thoughts.of(*marks, self._tokenizer, self._end_tokens)

    def _parser(self, spec: OutputSpec, tools: list[Any], start: Start | None) -> parsers.Parser | None:
        """The parser of an answer that starts there; None: the parser knows by itself."""
        parser = self._classes[None if spec.choice is ToolChoice.NONE else self._tool_parser]
        if parser is None:
            return None
        args = dict(spec.template_args) if start is None else thoughts_args(spec.template_args, start)
        return parsers.made(parser, self._tokenizer, tools, args, self._model_config)


@dataclass(frozen=True, slots=True)
class VllmOutputFormat:
    """See `workers.engine.output_format.OutputFormat`."""

    make_parser: Callable[[Start | None], parsers.Parser | None]
    thoughts: Thoughts | None
    request: parsers.ResponsesRequest
    structured: Structured | None
    tokenizer: Any
    end_tokens: frozenset[int]
    markers: frozenset[int]
    special: bool
    listed: bool

    def decoder(self) -> Decoder:
        return VllmDecoder(self.tokenizer, special=self.special)

    def parser(self, prompt: Sequence[int]) -> OutputParser:
        thoughts = self.thoughts
        if thoughts is None:
            return self._started(None, prompt)
        start = thoughts.start(prompt)
        made = partial(self._started, prompt=prompt)
        return FreeParser(thoughts, made) if start is Start.FREE else made(start)

    def _started(self, start: Start | None, prompt: Sequence[int]) -> OutputParser:
        parser = self.make_parser(start)
        if parser is None:
            return PlainParser()
        known = prompt if start is None or self.thoughts is None else self.thoughts.prompt(start)
        # a copy: one format serves several responses, and parsers may write into their request
        return VllmOutputParser(parser, self.request.model_copy(), known, listed=self.listed)


def _request(spec: OutputSpec, functions: Sequence[FunctionTool]) -> parsers.ResponsesRequest:
    """`spec` as a request of vLLM's API; its text format is enforced without it."""
    parallel = not (spec.single and calls.is_enforced(spec))
    return parsers.request_of(functions, _choice(spec), parallel=parallel)


def _choice(spec: OutputSpec) -> Any:
    if spec.choice is ToolChoice.NAMED:
        return ToolChoiceFunction(type="function", name=spec.tools[0].name).model_dump()
    return spec.choice.value


def _native(parser: parsers.Parser, request: parsers.ResponsesRequest, spec: OutputSpec) -> Json | None:
    """vLLM's format of the calls. Beside a text it has at least one call. Raises InvalidSampling."""
    if spec.text_format["type"] != "text" and not spec.forced:
        request = request.model_copy(update={"tool_choice": ToolChoice.REQUIRED.value})
    try:
        return parsers.calls_format(parser, request, enforce=calls.is_enforced(spec))
    except ValueError as error:  # raised by vLLM for a choice that the parser cannot enforce
        raise InvalidSampling(f"tool_choice: {error_message(error)}") from None


def _functions(spec: OutputSpec, parts: Parts) -> list[FunctionTool]:
    """The tools as vLLM's API takes them. If a grammar enforces the calls anyway, it enforces their arguments too."""
    enforced = calls.is_enforced(spec)
    return [_function(tool, strict=tool.strict or (enforced and tool.name in parts.enforceable)) for tool in spec.tools]


def _function(tool: Tool, *, strict: bool) -> FunctionTool:
    parameters = dict(tool.parameters) if tool.parameters is not None else None
    if tool.grammar is not None:
        parameters = {**(parameters or {}), "title": grammar.CUSTOM_TITLE + tool.name}
    return FunctionTool(
        type="function", name=tool.name, description=tool.description, parameters=parameters, strict=strict
    )
