"""Text -> deltas, by vLLM's streaming parsers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import Parser

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text

_LONGEST_MARK = 64  # characters, more than any


class PlainParser:
    """All text is text."""

    plain = True

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        return [Text(text)] if text else []

    def flush(self, *, cut: bool) -> list[Delta]:
        return []


class VllmOutputParser:
    """One streaming parser."""

    plain = False
    """It may take any text for markup."""

    def __init__(self, parser: Parser, request: ResponsesRequest, prompt: Sequence[int]) -> None:
        self._parser = parser
        self._request = request
        self._prompt = list(prompt)
        self._call = -1
        self._unsaid = ""
        """Text of which the parser has not said anything."""
        parser.set_prompt_token_ids(self._prompt)

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        return self._read(text, list(token_ids), finished=False)

    def flush(self, *, cut: bool) -> list[Delta]:
        said = self._read("", [], finished=True)
        if cut:  # a call that begins only now has half a name
            return list(takewhile(lambda delta: not isinstance(delta, CallStart), said))
        return said or self._withheld()

    def _read(self, text: str, token_ids: list[int], *, finished: bool) -> list[Delta]:
        message = self._parser.parse_delta(text, token_ids, self._request, self._prompt, finished=finished)
        self._unsaid += text
        if message is None:
            self._unsaid = self._unsaid[-_LONGEST_MARK:]
            return []
        if message.content or message.reasoning or message.tool_calls:
            self._unsaid = self._unsaid.partition(message.content)[2] if message.content else ""
        said: list[Delta] = [Reasoning(message.reasoning)] if message.reasoning else []
        if message.content:
            said.append(Text(message.content))
        for call in message.tool_calls or ():
            said += self._of_call(call)
        return said

    def _withheld(self) -> list[Delta]:
        """Text like the beginning of a call, which no call followed: some of vLLM's parsers keep it for ever."""
        start = getattr(self._parser.tool_parser, "tool_call_start_token", None)
        if isinstance(start, str) and self._unsaid and start.startswith(self._unsaid) and start != self._unsaid:
            return [Text(self._unsaid)]
        return []

    def _of_call(self, call: Any) -> list[Delta]:
        said: list[Delta] = []
        if call.function is not None and call.function.name:
            self._call = call.index
            said.append(CallStart(call.function.name))
        if call.function is not None and call.function.arguments and call.index == self._call:
            said.append(CallArguments(call.function.arguments))
        return said
