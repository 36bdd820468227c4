"""The scripted engine's output format: marks around reasoning and calls, as in the hermes format.

    <think>REASONING</think>TEXT<tool_call>{"name": NAME, "arguments": {...}}</tool_call>

There is no grammar: whether an answer has the requested form is up to its script.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from enum import Enum

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from app.protocol.types import Json
from tests.support.scripted.script import ANSWER, BEGIN, CALL, CALL_END, END, MARK_TEXTS, MARKS, THINK, THINK_END
from workers.engine.output_format import Decoder, OutputParser, OutputSpec, Structured, ToolChoice

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]+)"\s*,\s*"arguments"\s*:\s*(?=\S)')
_TAIL = re.compile(r"[}\s]*\Z")


class ScriptedOutputFormat:
    structured: Structured | None = None
    end_tokens = frozenset({BEGIN, ANSWER, END})
    markers = frozenset(MARKS)

    def __init__(self, spec: OutputSpec) -> None:
        self._calls = spec.choice is not ToolChoice.NONE

    def decoder(self) -> Decoder:
        return ScriptedDecoder()

    def parser(self, prompt: Sequence[int]) -> OutputParser:
        return ScriptedOutputParser(calls=self._calls)


class ScriptedDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(self._pieces(token_ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _pieces(self, token_ids: Sequence[int]) -> Iterator[str]:
        for token in token_ids:
            if token < END:
                yield self._utf8.decode(bytes([token]))
            elif token in MARK_TEXTS:
                yield self.flush() + MARK_TEXTS[token]


class State(Enum):
    TEXT = "text"
    THINK = "think"
    NAME = "name"
    """In a call, before its arguments."""
    ARGUMENTS = "arguments"


class ScriptedOutputParser:
    def __init__(self, *, calls: bool) -> None:
        self._moves = {
            (State.TEXT, THINK): State.THINK,
            (State.THINK, THINK_END): State.TEXT,
        }
        if calls:
            self._moves |= {
                (State.TEXT, CALL): State.NAME,
                (State.NAME, CALL_END): State.TEXT,
                (State.ARGUMENTS, CALL_END): State.TEXT,
            }
        self._state = State.TEXT
        self._held = ""
        self._arguments = ""

    @property
    def plain(self) -> bool:
        return self._state is State.TEXT

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        mark = next((token for token in token_ids if (self._state, token) in self._moves), None)
        if mark is None:
            return self._deltas(text)
        before = text.removesuffix(MARK_TEXTS[mark])  # text that the decoder had held back
        deltas = self._deltas(before) + self._close()
        self._state = self._moves[self._state, mark]
        self._held = self._arguments = ""
        return deltas

    def flush(self, *, cut: bool) -> list[Delta]:
        return self._close()

    def _deltas(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._state is State.TEXT:
            return [Text(text)]
        if self._state is State.THINK:
            return [Reasoning(text)]
        self._held += text
        return self._call_start() + self._call_arguments()

    def _call_start(self) -> list[Delta]:
        head = _HEAD.match(self._held) if self._state is State.NAME else None
        if head is None:
            return []
        self._state, self._held = State.ARGUMENTS, self._held[head.end() :]
        return [CallStart(head[1])]

    def _call_arguments(self) -> list[Delta]:
        """Arguments, except what may be the closing brace of the call."""
        tail = _TAIL.search(self._held) if self._state is State.ARGUMENTS else None
        if tail is None or not tail.start():
            return []
        arguments, self._held = self._held[: tail.start()], tail[0]
        self._arguments += arguments
        return [CallArguments(arguments)]

    def _close(self) -> list[Delta]:
        if self._state is not State.ARGUMENTS:
            return []
        rest = self._held.rstrip()
        if _is_json(self._arguments + rest[:-1]):
            rest = rest[:-1].rstrip()
        return [CallArguments(rest)] if rest else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def logprob_of(token: int, top: int) -> Json:
    """The chosen token has logprob 0; the bytes after it in order are less and less likely."""
    ranked = [_logprob((token + rank) % END if token < END else token, -float(rank)) for rank in range(top)]
    return {**_logprob(token, 0.0), "top_logprobs": ranked}


def _logprob(token: int, logprob: float) -> Json:
    data = bytes([token]) if token < END else MARK_TEXTS.get(token, "").encode()
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}
