"""Calls that vLLM's parsers lose, and how they are kept: each is a fault of one parser, or of a few."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.tool_parsers import ToolParser
from vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser
from vllm.tool_parsers.deepseekv31_tool_parser import DeepSeekV31ToolParser
from vllm.tool_parsers.functiongemma_tool_parser import FunctionGemmaToolParser
from vllm.tool_parsers.granite_20b_fc_tool_parser import Granite20bFCToolParser
from vllm.tool_parsers.olmo3_tool_parser import Olmo3PythonicToolParser

from workers.engine.vllm.compat.changed import replace_in

_FIRST_MARKS: Mapping[type[ToolParser], str] = {
    Olmo3PythonicToolParser: "<function_calls>",
    Granite20bFCToolParser: "<function_call>",
}
"""Parser that takes a call for text if anything comes before it -> the mark that begins calls."""
_BRACKETS = ("{", "[", "<")


def first_mark(parser: ToolParser) -> str | None:
    return _FIRST_MARKS.get(type(parser))


def mend(parser: ToolParser) -> None:
    """Makes the parser of one answer keep the calls that vLLM's code would lose. Raises VllmChanged."""
    if isinstance(parser, DeepSeekV3ToolParser | DeepSeekV31ToolParser):  # lose what follows a line feed in a call
        deepseek: DeepSeekV3ToolParser = parser
        pattern = deepseek.stream_tool_call_portion_regex.pattern
        replace_in(parser, "stream_tool_call_portion_regex", re.compile(pattern, re.DOTALL))
    if isinstance(parser, FunctionGemmaToolParser):
        replace_in(parser, "tool_call_regex", _WHOLE_CALL)
        replace_in(parser, "_parse_arguments", function_gemma_arguments)
    if not parser.engine_based_streaming:
        replace_in(parser, "extract_tool_calls_streaming", _Behind(parser))


class _Behind:
    """Shows a parser of calls the answer from its first call on: several know no call that has something before it.

    Where calls begin with a mark, the text before the first mark is passed on. Other parsers are shown calls in
    brackets without the white space before these, which models write behind thoughts.
    """

    def __init__(self, parser: ToolParser) -> None:
        self._extract = parser.extract_tool_calls_streaming
        self._mark = first_mark(parser)
        self._said = 0
        """Characters before the mark that were passed on."""

    def __call__(self, previous: str, current: str, delta: str, *rest: Any) -> Any:
        if self._mark is not None:
            return self._behind_text(self._mark, previous, current, *rest)
        text = current.lstrip()
        if text.startswith(_BRACKETS) and text != current:
            previous = previous.lstrip()
            current, delta = text, text[len(previous) :]
        return self._extract(previous, current, delta, *rest)

    def _behind_text(self, mark: str, previous: str, current: str, *rest: Any) -> Any:
        begins = current.find(mark)
        held = next((n for n in range(len(mark) - 1, 0, -1) if current.endswith(mark[:n])), 0)
        until = len(current) - held if begins < 0 else begins
        said, self._said = current[self._said : until], max(self._said, until)
        made = None
        if begins >= 0:
            start = max(begins, len(previous))
            made = self._extract(previous[begins:], current[begins:], current[start:], *rest)
        if said:
            made = made or DeltaMessage()
            made.content = said + (made.content or "")
        return made


_ESCAPED = "<escape>"
_BARE_KEY = re.compile(r"([{,]\s*)(\w+)(?=\s*:)")


_WHOLE_CALL = re.compile(
    r"<start_function_call>call:(\w+)(\{.*?\})<end_function_call>|<start_function_call>call:(\w+)(\{.*)", re.DOTALL
)


def function_gemma_arguments(written: str) -> dict[str, Any]:
    """FunctionGemma's arguments: strings are between `<escape>`, anything else is as in JSON, but for bare keys. vLLM
    drops what is no string, and makes numbers of strings. They come whole, with their braces, or not at all."""
    if not written.startswith("{"):
        return {}
    pieces = written.split(_ESCAPED)
    quoted = [json.dumps(piece) if index % 2 else _BARE_KEY.sub(r'\1"\2"', piece) for index, piece in enumerate(pieces)]
    try:
        found = json.loads("".join(quoted))
    except ValueError:  # not whole yet
        return {}
    return found if isinstance(found, dict) else {}
