"""Harmony models: one response's token ids -> what the model said.

Every token goes through alone, so that nothing depends on how tokens were batched:

    token -> messages (harmony_reader) -> stop strings -> text, reasoning, calls -> citations -> deltas

    to a tool                           the call, whatever the channel
    analysis                            reasoning
    commentary, to nobody               text: a preamble, in a message of its own
    final, an unknown channel, or none  text: the answer
    to a tool that may not be called    a call that fails (gpt-oss calls python unasked), and the model goes on: in
                                        harmony a call ends the turn, and only an answer to it brings the next
    by another author than assistant    nothing: the model made up what others say

A second message of a kind behind the first goes on in its item, behind a blank line. A token is settled, and may be
committed, with the first delta that comes out when it was read, or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from workers.engine.output_format import Json
from workers.formats.calls.hosted import HostedCall, NameStyle, unknown_tool
from workers.formats.calls.open_calls import Custom, Function, OpenCall, hosted_call
from workers.formats.calls.router import CallRouter
from workers.formats.chat.parser import AnswerRules, merge_deltas
from workers.formats.citations import Citations, Sources
from workers.formats.harmony.encoding import ANALYSIS, ASSISTANT, COMMENTARY
from workers.formats.harmony.messages import FUNCTIONS
from workers.formats.harmony.reader import Content, HarmonyReader, Header, Said
from workers.formats.stops import Piece, StopStrings, Token
from workers.formats.turn import Parsed

_NOBODY = (None, ASSISTANT, "all", "user")


class Sort(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the text of a message goes."""

    sort: Sort
    phase: Literal["commentary", "final_answer"] | None = None


class HarmonyCallRouter(CallRouter):
    """Calls by their recipient: `functions.f`, or `f` alone, is the client's; the server's have their own names."""

    def _opened(self, name: str) -> OpenCall:
        if name in self._hosted:
            return hosted_call(self._hosted[name])
        function = name.removeprefix(FUNCTIONS)
        if function in self._custom:
            return Custom(function)
        return Function(function) if function in self._functions else hosted_call(unknown_tool(name, NameStyle.HARMONY))


class HarmonyParser:
    """See `workers.formats.turn.Parser`. `silent`: tokens that end the answer, and are no text."""

    def __init__(self, rules: AnswerRules, sources: Sources, end_tokens: frozenset[int] = frozenset()) -> None:
        self._reader = HarmonyReader()
        self._stops = StopStrings(rules.stop, keep=rules.keep_stop)
        self._calls = HarmonyCallRouter(rules.functions, rules.custom, rules.hosted, single=rules.single_call)
        self._citations = Citations(sources)
        self._min_tokens = rules.min_tokens
        self._end_tokens = end_tokens
        self._target = Target(Sort.NOTHING)
        self._last = Target(Sort.NOTHING)
        """What was said last."""
        self._begins = True
        """The message has said nothing yet."""
        self._unsettled: list[int] = []
        self.tokens = 0
        self.reasoning_tokens = 0

    @property
    def ended(self) -> bool:
        return self._stops.found or self._calls.ended

    @property
    def calls(self) -> Sequence[HostedCall]:
        """None where a stop string ended the answer: nobody is to go on."""
        return () if self._stops.found else tuple(self._calls.hosted)

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        said: list[Delta] = []
        settled: list[int] = []
        for token in token_ids:
            if self.ended:
                break
            deltas = self._citations.feed(self._step(token))
            if deltas:
                said += deltas
                settled, self._unsettled = settled + self._unsettled, []
        return Parsed(merge_deltas(said), tuple(settled))

    def flush(self, *, cut: bool = False) -> Parsed:
        said: list[Delta] = []
        if not self.ended:
            for last in self._reader.flush():
                said += self._message(last, None) if isinstance(last, Content) else self._say(self._stops.flush())
        if not self._calls.ended:
            said += self._calls.flush(cut=cut or self._stops.found)
        settled, self._unsettled = tuple(self._unsettled), []
        return Parsed(merge_deltas(self._citations.feed(said)), settled)

    def _step(self, token_id: int) -> list[Delta]:
        self.tokens += 1
        self._unsettled.append(token_id)
        token: Token | None = Token(token_id)
        said: list[Delta] = []
        for each in self._reader.feed(token_id) if token_id not in self._end_tokens else ():
            said += self._message(each, token)
            token = None if isinstance(each, Content) else token
        return said + self._pass(Piece("", token)) if token is not None else said

    def _message(self, said: Said, token: Token | None) -> list[Delta]:
        if isinstance(said, Content):
            return self._pass(Piece(said.text, token))
        deltas = self._say(self._stops.flush())  # no stop string goes over the end of a message
        return deltas + (self._header(said) if isinstance(said, Header) else self._calls.flush())

    def _pass(self, piece: Piece) -> list[Delta]:
        return self._say(self._stops.feed(piece, exempt=self.tokens <= self._min_tokens))

    def _header(self, header: Header) -> list[Delta]:
        self._target, self._begins = self._aimed(header), True
        if self._target.sort is not Sort.CALL:
            return []
        self._last = self._target
        return self._calls.feed([CallStart(header.recipient or "")])

    def _aimed(self, header: Header) -> Target:
        if header.role != ASSISTANT:
            return Target(Sort.NOTHING)
        if header.recipient not in _NOBODY:
            return Target(Sort.CALL)
        if header.channel == ANALYSIS:
            return Target(Sort.REASONING)
        return Target(Sort.TEXT, "commentary" if header.channel == COMMENTARY else "final_answer")

    def _say(self, pieces: Iterable[Piece]) -> list[Delta]:
        said: list[Delta] = []
        for piece in pieces:
            if piece.text:
                self.reasoning_tokens += piece.token is not None and self._target.sort is Sort.REASONING
                said += self._said(piece.text)
        return said

    def _said(self, text: str) -> list[Delta]:
        target = self._target
        if target.sort is Sort.CALL:
            return self._calls.feed([CallArguments(text)])
        if target.sort is Sort.NOTHING:
            return []
        gap = "\n\n" if self._begins and self._last == target else ""
        self._begins, self._last = False, target
        if target.sort is Sort.REASONING:
            return [Reasoning(gap + text)]
        return [Text(gap + text, phase=target.phase)]
