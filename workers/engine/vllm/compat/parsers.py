"""vLLM's parsers of reasoning and calls: how they are found, told of a request, and fed, and the grammar of an answer's
calls as they describe it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai.types.responses import FunctionTool
from vllm.config import ModelConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import Parser, ParserManager
from vllm.parser.abstract_parser import DelegatingParser
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.reasoning import ReasoningParser
from vllm.tool_parsers import ToolParser
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
from vllm.tool_parsers.structural_tag_registry import limit_to_single_tool_call
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

from workers.engine.vllm.compat.changed import expect_attribute, replace_in
from workers.engine.vllm.compat.mending import first_mark, mend

__all__ = ["Parser", "ResponsesRequest"]

_START = "tool_call_start_token"
"""What several parsers call the mark that begins a call; others have none."""
expect_attribute(Hermes2ProToolParser, _START)


def parser_class(
    tokenizer: Any, model_path: str, *, reasoning_parser: str | None, tool_parser: str | None
) -> type[Parser] | None:
    """vLLM's parser of these names; None if both are None. Raises what the parser raises."""
    found: type[Parser] | None = ParserManager.get_parser(
        tool_parser_name=tool_parser,
        reasoning_parser_name=reasoning_parser,
        enable_auto_tools=tool_parser is not None,
        model_name=model_path,
        tokenizer=tokenizer,
    )
    return found


def made(
    parser: type[Parser],
    tokenizer: Any,
    tools: Sequence[ChatCompletionToolsParam],
    template_args: dict[str, Any] | None = None,
    model_config: ModelConfig | None = None,
) -> Parser:
    """A parser for one answer. Raises what the parser raises."""
    return parser(tokenizer, list(tools), chat_template_kwargs=template_args, model_config=model_config)


def request_of(functions: Sequence[FunctionTool], choice: Any, *, parallel: bool = True) -> ResponsesRequest:
    """A request of vLLM's API with these tools. `choice`: as callers write `tool_choice`."""
    tools = [function.model_dump() for function in functions]
    return ResponsesRequest(model="", input="", tools=tools, tool_choice=choice, parallel_tool_calls=parallel)


def chat_tool(function: FunctionTool) -> ChatCompletionToolsParam:
    """The function as the Chat Completions API has it: some parsers take no other."""
    fields = function.model_dump(include={"name", "description", "parameters", "strict"})
    return ChatCompletionToolsParam(function=fields)


def reasoning_marks(parser: Parser) -> tuple[str, str] | None:
    """The texts that begin and end a model's thoughts; None: it has none, or the parser does not tell."""
    found: ReasoningParser | None = parser.reasoning_parser
    if found is None or not found.reasoning_start_str or not found.reasoning_end_str:
        return None
    return found.reasoning_start_str, found.reasoning_end_str


class StreamingParser:
    """vLLM's streaming parser for one answer."""

    def __init__(self, parser: Parser, request: ResponsesRequest, prompt: Sequence[int], *, listed: bool) -> None:
        """`listed`: the calls are a JSON list, which vLLM reads from all of the text so far."""
        self._parser = parser
        tools: ToolParser | None = parser.tool_parser
        if listed:
            replace_in(tools, "supports_required_and_named", True)
            replace_in(parser._stream_state, "engine_based", False)
        if tools is not None:
            mend(tools)
        self._request = request
        self._prompt = list(prompt)
        parser.set_prompt_token_ids(self._prompt)

    def feed(self, text: str, token_ids: Sequence[int], *, finished: bool) -> Any | None:
        """A DeltaMessage (`content`, `reasoning`, `tool_calls`), or None."""
        parser: Parser = self._parser
        return parser.parse_delta(text, list(token_ids), self._request, self._prompt, finished=finished)

    @property
    def call_start(self) -> str | None:
        """The text that begins a tool call, if the parser has one."""
        parser: Parser = self._parser
        start = getattr(parser.tool_parser, _START, None) or first_mark(parser.tool_parser)
        return start if isinstance(start, str) else None


def shows_special_tokens(parser: Parser, request: ResponsesRequest) -> bool:
    """Whether the parser must see special tokens as text."""
    plain = request.model_copy(update={"tool_choice": "auto" if request.tools else "none"})
    return not parser.adjust_request(plain).skip_special_tokens


def calls_format(parser: Parser, request: ResponsesRequest, *, enforce: bool) -> dict[str, Any] | None:
    """The format of the request's calls (of a structural tag), if the parser has one, and it is asked for.

    `enforce`: also if the model may choose not to call. Raises ValueError if the parser cannot enforce the choice.
    """
    tools: ToolParser = parser.tool_parser
    level = ToolStrictLevel.FUNCTION if enforce else tools.default_tool_strict_level or ToolStrictLevel.AUTO
    tag = tools.get_structural_tag(request, strict_level=level)
    if tag is None:
        return None
    made: dict[str, Any] = (tag if request.parallel_tool_calls else limit_to_single_tool_call(tag)).model_dump()
    return dict(made["format"])


def implicit_ends(parser: Parser) -> frozenset[int]:
    """Tokens that begin a call, and end the reasoning before them: from there on vLLM holds the answer to its grammar,
    and gives up a request whose grammar has no call there."""
    if not isinstance(parser.reasoning_parser, ParserEngineReasoningAdapter):
        return frozenset()
    reasoning: ParserEngineReasoningAdapter = parser.reasoning_parser
    ends: frozenset[int] = reasoning.reasoning_end_token_ids
    return ends - {parser.model_tokenizer.get_vocab().get(reasoning.reasoning_end_str)}


def can_read_list(parser: Parser) -> bool:
    """Whether vLLM can read required calls as a JSON list instead of the parser's own form."""
    return type(parser).parse_delta is DelegatingParser.parse_delta
