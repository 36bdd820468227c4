"""The grammar of an answer's calls, as vLLM's parsers describe it."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import Parser
from vllm.parser.abstract_parser import DelegatingParser
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.tool_parsers import ToolParser
from vllm.tool_parsers.structural_tag_registry import limit_to_single_tool_call
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel


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
