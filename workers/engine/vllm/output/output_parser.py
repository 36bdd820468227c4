"""Text to deltas, by vLLM's streaming parsers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from openai.types.responses import FunctionTool

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.vllm.compat import parsers
from workers.engine.vllm.errors import error_message

_CALL_ID = "[CALL_ID]"
"""Mistral Small 3.2 may write a call's id behind its name; vLLM's parser takes it for a part of the name."""
_NO_ARGUMENTS = re.compile(r"\{\s*\}")
"""Several of vLLM's parsers return nothing for a call's empty object."""
_MAX_MARK = 64
"""Characters; no parser's mark of a call is longer."""


def parser_class(
    model: ServedModel, tokenizer: Any, reasoning_parser: str | None, tool_parser: str | None
) -> type[parsers.Parser] | None:
    """vLLM's parser of these names; None: neither is named. Raises ConfigError if one does not fit the tokenizer."""
    try:
        found = parsers.parser_class(tokenizer, model.path, reasoning_parser=reasoning_parser, tool_parser=tool_parser)
        if found is not None:
            _try(found, tokenizer, calls=tool_parser is not None)
        return found
    except Exception as error:  # a parser is a program and may raise anything
        names = " and ".join(filter(None, (reasoning_parser, tool_parser)))
        hint = "set tool_parser and reasoning_parser in the models file, to other names or to none"
        raise ConfigError(f"model {model.name!r}: {names}: {error_message(error)}; {hint}") from None


def _try(parser: type[parsers.Parser], tokenizer: Any, *, calls: bool) -> None:
    """Raises what the parser raises: some of vLLM's names stand for parsers that read nothing."""
    function = FunctionTool(type="function", name="f", parameters={}, strict=False)
    request, tokens = parsers.request_of([function], "auto"), tokenizer.encode("a", add_special_tokens=False)
    for listed in (False, True):
        made = parsers.made(parser, tokenizer, [parsers.chat_tool(function)])
        if not listed or (calls and parsers.can_read_list(made)):
            VllmOutputParser(made, request, (), listed=listed).feed("a", tokens)


class PlainParser:
    """For models without parsers: all text is text."""

    plain = True

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        return [Text(text)] if text else []

    def flush(self, *, cut: bool) -> list[Delta]:
        return []


class VllmOutputParser:
    """See `workers.engine.output_format.OutputParser`."""

    plain = False
    """A vLLM parser may take any text for a mark."""

    def __init__(
        self, parser: parsers.Parser, request: parsers.ResponsesRequest, prompt: Sequence[int], *, listed: bool
    ) -> None:
        self._parser = parsers.StreamingParser(parser, request, prompt, listed=listed)
        self._call_index = -1
        self._bare_call: str | None = None
        """Text since the call that has begun; None: it has arguments, or there is no call."""
        self._withheld = ""
        """Text that went into the parser since it last returned something."""

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        return self._read(text, token_ids, finished=False)

    def flush(self, *, cut: bool) -> list[Delta]:
        deltas = self._read("", (), finished=True)
        if cut:  # a call that begins only now has half a name
            return list(takewhile(lambda delta: not isinstance(delta, CallStart), deltas))
        deltas += self._empty_arguments()
        return deltas or self._unfinished_call_start()

    def _read(self, text: str, token_ids: Sequence[int], *, finished: bool) -> list[Delta]:
        message = self._parser.feed(text, token_ids, finished=finished)
        self._withheld += text
        if self._bare_call is not None:
            self._bare_call += text
        if message is None:
            self._withheld = self._withheld[-_MAX_MARK:]
            return []
        if message.content or message.reasoning or message.tool_calls:
            self._withheld = self._withheld.partition(message.content)[2] if message.content else ""
        deltas: list[Delta] = [Reasoning(message.reasoning)] if message.reasoning else []
        if message.content:
            deltas.append(Text(message.content))
        for call in message.tool_calls or ():
            deltas += self._call_deltas(call, text)
        return deltas

    def _unfinished_call_start(self) -> list[Delta]:
        """Text that looked like the start of a call which never came: some of vLLM's parsers withhold it for good."""
        start = self._parser.call_start
        if start and self._withheld and start.startswith(self._withheld) and start != self._withheld:
            return [Text(self._withheld)]
        return []

    def _empty_arguments(self) -> list[Delta]:
        """The arguments of a call that has begun, if they are an empty object and the parser did not say so."""
        bare, self._bare_call = self._bare_call, None
        return [CallArguments("{}")] if bare is not None and _NO_ARGUMENTS.search(bare) else []

    def _call_deltas(self, call: Any, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        if call.function is not None and call.function.name:
            deltas += self._empty_arguments()
            self._call_index, self._bare_call = call.index, text
            deltas.append(CallStart(call.function.name.partition(_CALL_ID)[0]))
        if call.function is not None and call.function.arguments and call.index == self._call_index:
            deltas.append(CallArguments(call.function.arguments))
            self._bare_call = None
        return deltas
