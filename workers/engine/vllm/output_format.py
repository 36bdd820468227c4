"""How a model says things, by vLLM's own reasoning and tool parsers.

vLLM's parsers take one of its API's requests and adjust it: what grammar holds the output to the calls
that were asked for, and whether special tokens are part of the text. Its streaming parsers are fed token by
token; where they differ from their twins for whole texts, they rule.

Grammars are made only where something has to be enforced, for they give the sampler a memory: a schema for
the text, a required or named call, a strict function, a custom tool's grammar, and a choice among the tools
that the model was shown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from openai.types.responses import FunctionTool, ToolChoiceFunction
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import Parser, ParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.base import InvalidSampling
from workers.engine.output_format import Decoder, OutputParser, OutputSpec, Structured, Tool, ToolChoice
from workers.engine.vllm import grammar
from workers.engine.vllm.decoder import VllmDecoder
from workers.engine.vllm.errors import one_line
from workers.engine.vllm.output_parser import PlainParser, VllmOutputParser

MOST_KEPT = 64
LONGEST_KEPT = 20_000
"""Letters of a form that is kept, tools and schemas and all."""


class OutputFormats:
    """Makes the formats of one model. Raises ConfigError where a parser is unknown or not of this tokenizer."""

    def __init__(self, model: ServedModel, tokenizer: Any, end_tokens: frozenset[int], model_config: Any) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._markers = frozenset(tokenizer.get_added_vocab().values()) - end_tokens
        self._model_config = model_config
        self._can_call = model.tool_parser is not None
        self._plain = self._parser_class(model, None)
        self._calling = self._parser_class(model, model.tool_parser)
        self._known: OrderedDict[str, VllmOutputFormat] = OrderedDict()
        """By what their forms say: most requests ask for the same few."""

    async def output_format(self, spec: OutputSpec) -> VllmOutputFormat:
        """Raises InvalidSampling."""
        if spec.choice is not ToolChoice.NONE and not self._can_call:
            raise InvalidSampling("tools: this model calls no tools")
        said = repr(spec)
        if (found := self._known.get(said)) is not None:
            self._known.move_to_end(said)
            return found
        made = await asyncio.to_thread(self._made, spec)  # grammars take their time
        if len(said) <= LONGEST_KEPT:
            self._known[said] = made
            if len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        return made

    def _made(self, spec: OutputSpec) -> VllmOutputFormat:
        for tool in spec.tools:
            grammar.check_tool(tool)
        parser = self._parser(spec)
        request = _request(spec)
        if parser is not None:
            try:
                request = _adjusted(parser, request, spec)
            except ValueError as error:  # vLLM's own refusals are ones
                raise InvalidSampling(f"tool_choice: {one_line(error)}") from None
        tag = _tag(request, spec)
        return VllmOutputFormat(
            parser=self._parser,
            spec=spec,
            request=request,
            structured=Structured(tag, spec.template_args) if tag is not None else None,
            tokenizer=self._tokenizer,
            end_tokens=self._end_tokens | frozenset(spec.stop_tokens),
            markers=self._markers,
        )

    def _parser(self, spec: OutputSpec) -> Parser | None:
        made = self._plain if spec.choice is ToolChoice.NONE else self._calling
        if made is None:
            return None
        tools = _functions(spec)
        args = dict(spec.template_args)
        return made(self._tokenizer, tools, chat_template_kwargs=args, model_config=self._model_config)

    def _parser_class(self, model: ServedModel, tool_parser: str | None) -> type[Parser] | None:
        try:
            found: type[Parser] | None = ParserManager.get_parser(
                tool_parser_name=tool_parser,
                reasoning_parser_name=model.reasoning_parser,
                enable_auto_tools=tool_parser is not None,
                model_name=model.path,
                tokenizer=self._tokenizer,
            )
            return found
        except Exception as error:  # a parser is a program
            names = " and ".join(filter(None, (model.reasoning_parser, tool_parser)))
            raise ConfigError(f"model {model.name!r}: {names}: {one_line(error)}") from None


class VllmOutputFormat:
    def __init__(
        self,
        *,
        parser: Any,
        spec: OutputSpec,
        request: ResponsesRequest,
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
        # Of its own: a output_format serves several responses, and parsers may write into their requests.
        return PlainParser() if parser is None else VllmOutputParser(parser, self._request.model_copy(), prompt)


def _request(spec: OutputSpec) -> ResponsesRequest:
    """The form in vLLM's words. Raises InvalidSampling where a schema cannot be made a grammar."""
    forced = spec.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)
    text = None if forced else grammar.text_format(spec.text_format)
    return ResponsesRequest(
        model="",
        input="",
        tools=[function.model_dump() for function in _functions(spec)],
        tool_choice=_choice(spec),
        parallel_tool_calls=not (spec.single and _is_enforced(spec)),
        structured_outputs=StructuredOutputsParams(structural_tag=grammar.tag_of(text)) if text else None,
    )


def _choice(spec: OutputSpec) -> Any:
    if spec.choice is ToolChoice.NAMED:
        return ToolChoiceFunction(type="function", name=spec.tools[0].name).model_dump()
    return spec.choice.value


def _is_enforced(spec: OutputSpec) -> bool:
    """Whether calls are held to a grammar."""
    return (
        spec.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)
        or (spec.choice is ToolChoice.AUTO and spec.text_format["type"] != "text")
        or spec.closed
        or any(tool.strict for tool in spec.tools)
    )


def _adjusted(parser: Parser, request: ResponsesRequest, spec: OutputSpec) -> ResponsesRequest:
    if spec.choice is ToolChoice.AUTO and _is_enforced(spec):
        parser.tool_strict_level = ToolStrictLevel.FUNCTION
    adjusted: ResponsesRequest = parser.adjust_request(request)
    held = adjusted.structured_outputs is not None and adjusted.structured_outputs.structural_tag is not None
    if not held and (custom := next((tool for tool in spec.tools if tool.grammar), None)):
        raise InvalidSampling(f"{custom.field}.format: this model's tool calls cannot be held to a grammar")
    return adjusted


def _tag(request: ResponsesRequest, spec: OutputSpec) -> str | None:
    """The structural tag of all that has to be enforced."""
    wanted = request.extract_structured_outputs()
    if wanted is None:
        return None
    if wanted.structural_tag is not None:
        return grammar.tool_tag(wanted.structural_tag, spec.tools)
    return grammar.tool_tag(grammar.tag_of(grammar.json_format(wanted.json)), spec.tools)


def _functions(spec: OutputSpec) -> list[FunctionTool]:
    """The tools in vLLM's words. Where calls are held to a grammar anyhow, so are their arguments."""
    enforced = _is_enforced(spec)
    return [_function(tool, strict=tool.strict or (enforced and grammar.can_hold(tool))) for tool in spec.tools]


def _function(tool: Tool, *, strict: bool) -> FunctionTool:
    parameters = dict(tool.parameters) if tool.parameters is not None else None
    if tool.grammar is not None:
        parameters = {**(parameters or {}), "title": grammar.CUSTOM + tool.name}
    return FunctionTool(
        type="function", name=tool.name, description=tool.description, parameters=parameters, strict=strict
    )
