"""A model's output format, by vLLM's own reasoning and tool parsers.

vLLM's parsers take one of its API's requests and adjust it: the grammar that enforces the requested calls, and whether
special tokens are part of the text. Its streaming parsers are fed token by token; if one differs from its twin for
whole texts, the streaming parser decides.

A grammar gives the sampler a memory, so one is made only if something has to be enforced: a schema for the text, a
required or named call, a strict function, a custom tool's grammar, or a choice among the tools that were shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cachetools import LRUCache
from openai.types.responses import FunctionTool, ToolChoiceFunction
from vllm.sampling_params import StructuredOutputsParams

from app.heavy import in_thread
from app.protocol.requests.capabilities import NO_TOOLS
from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.base import InvalidSampling
from workers.engine.grammar_probe import GrammarProbe
from workers.engine.output_format import Decoder, OutputParser, OutputSpec, Structured, Tool, ToolChoice
from workers.engine.vllm import compat
from workers.engine.vllm.decoder import VllmDecoder
from workers.engine.vllm.errors import error_message
from workers.engine.vllm.grammars import grammar
from workers.engine.vllm.grammars.grammar import Parts
from workers.engine.vllm.output_parser import PlainParser, VllmOutputParser

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
        self._can_call = model.tool_parser is not None
        self._plain = self._parser_class(model, None)
        self._calling = self._parser_class(model, model.tool_parser)
        self._cache: LRUCache[str, VllmOutputFormat] = LRUCache(MAX_CACHED)
        """By the text of what a request asks: most requests ask for the same few things."""

    async def output_format(self, spec: OutputSpec) -> VllmOutputFormat:
        """Raises InvalidSampling."""
        if spec.choice is not ToolChoice.NONE and not self._can_call:
            raise InvalidSampling(f"tools: this model {NO_TOOLS}")
        key = repr(spec)
        if (found := self._cache.get(key)) is not None:
            return found
        size = len(key)
        parts = await grammar.parts_of(spec, size, self._probe, every_tool=_is_enforced(spec))
        made = await in_thread(partial(self._make, spec, parts), size)
        if size <= MAX_CACHED_CHARS:
            self._cache[key] = made
        return made

    def _make(self, spec: OutputSpec, parts: Parts) -> VllmOutputFormat:
        parser = self._parser(spec, parts)
        request = _request(spec, parts)
        if parser is not None:
            try:
                request = _adjusted(parser, request, spec)
            except ValueError as error:  # raised by vLLM for a choice that the parser cannot enforce
                raise InvalidSampling(f"tool_choice: {error_message(error)}") from None
        tag = _tag(request, spec, parts)
        return VllmOutputFormat(
            parser=partial(self._parser, parts=parts),
            spec=spec,
            request=request,
            structured=Structured(tag, spec.grammar_field, spec.template_args) if tag is not None else None,
            tokenizer=self._tokenizer,
            end_tokens=self._end_tokens | frozenset(spec.stop_tokens),
            markers=self._markers,
        )

    def _parser(self, spec: OutputSpec, parts: Parts) -> compat.Parser | None:
        parser = self._plain if spec.choice is ToolChoice.NONE else self._calling
        if parser is None:
            return None
        tools = _functions(spec, parts)
        args = dict(spec.template_args)
        return parser(self._tokenizer, tools, chat_template_kwargs=args, model_config=self._model_config)

    def _parser_class(self, model: ServedModel, tool_parser: str | None) -> type[compat.Parser] | None:
        try:
            return compat.parser_class(
                self._tokenizer, model.path, reasoning_parser=model.reasoning_parser, tool_parser=tool_parser
            )
        except Exception as error:  # a parser is a program and may raise anything
            names = " and ".join(filter(None, (model.reasoning_parser, tool_parser)))
            hint = "set tool_parser and reasoning_parser in the models file, to other names or to none"
            raise ConfigError(f"model {model.name!r}: {names}: {error_message(error)}; {hint}") from None


class VllmOutputFormat:
    """See `workers.engine.output_format.OutputFormat`."""

    def __init__(
        self,
        *,
        parser: Any,
        spec: OutputSpec,
        request: compat.ResponsesRequest,
        structured: Structured | None,
        tokenizer: Any,
        end_tokens: frozenset[int],
        markers: frozenset[int],
    ) -> None:
        self._parser = parser
        self._spec = spec
        self._request = request
        self._tokenizer = tokenizer
        self.structured = structured
        self.end_tokens = end_tokens
        self.markers = markers

    def decoder(self) -> Decoder:
        special = self._spec.special_tokens or not self._request.skip_special_tokens
        return VllmDecoder(self._tokenizer, special=special)

    def parser(self, prompt: Sequence[int]) -> OutputParser:
        parser = self._parser(self._spec)
        # a copy: one format serves several responses, and parsers may write into their request
        return PlainParser() if parser is None else VllmOutputParser(parser, self._request.model_copy(), prompt)


def _request(spec: OutputSpec, parts: Parts) -> compat.ResponsesRequest:
    """`spec` as a request of vLLM's API."""
    text = None if spec.forced else grammar.text_format(spec.text_format)
    return compat.ResponsesRequest(
        model="",
        input="",
        tools=[function.model_dump() for function in _functions(spec, parts)],
        tool_choice=_choice(spec),
        parallel_tool_calls=not (spec.single and _is_enforced(spec)),
        structured_outputs=StructuredOutputsParams(structural_tag=grammar.tag_of(text)) if text else None,
    )


def _choice(spec: OutputSpec) -> Any:
    if spec.choice is ToolChoice.NAMED:
        return ToolChoiceFunction(type="function", name=spec.tools[0].name).model_dump()
    return spec.choice.value


def _is_enforced(spec: OutputSpec) -> bool:
    """Whether a grammar enforces the calls."""
    return (
        spec.forced
        or (spec.choice is ToolChoice.AUTO and spec.text_format["type"] != "text")
        or spec.closed
        or any(tool.strict for tool in spec.tools)
    )


def _adjusted(parser: compat.Parser, request: compat.ResponsesRequest, spec: OutputSpec) -> compat.ResponsesRequest:
    """The request with the grammar of its calls. Raises InvalidSampling, and ValueError."""
    enforce = spec.choice is ToolChoice.AUTO and _is_enforced(spec)
    adjusted = compat.adjusted_request(parser, request, enforce_functions=enforce)
    held = adjusted.structured_outputs is not None and adjusted.structured_outputs.structural_tag is not None
    if not held and (custom := next((tool for tool in spec.tools if tool.grammar), None)):
        raise InvalidSampling(f"{custom.field}.format: this model's tool calls cannot be held to a grammar")
    return adjusted


def _tag(request: compat.ResponsesRequest, spec: OutputSpec, parts: Parts) -> str | None:
    """The structural tag of everything that has to be enforced."""
    enforced = compat.enforced_output(request)
    if enforced is None:
        return None
    if enforced.structural_tag is not None:
        return grammar.tool_tag(enforced.structural_tag, spec, parts)
    return grammar.tool_tag(grammar.tag_of(grammar.json_format(enforced.json)), spec, parts)


def _functions(spec: OutputSpec, parts: Parts) -> list[FunctionTool]:
    """The tools as vLLM's API takes them. If a grammar enforces the calls anyway, it enforces their arguments too."""
    enforced = _is_enforced(spec)
    return [_function(tool, strict=tool.strict or (enforced and tool.name in parts.enforceable)) for tool in spec.tools]


def _function(tool: Tool, *, strict: bool) -> FunctionTool:
    parameters = dict(tool.parameters) if tool.parameters is not None else None
    if tool.grammar is not None:
        parameters = {**(parameters or {}), "title": grammar.CUSTOM_TITLE + tool.name}
    return FunctionTool(
        type="function", name=tool.name, description=tool.description, parameters=parameters, strict=strict
    )
