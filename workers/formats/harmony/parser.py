"""Harmony models: one answer's token ids to deltas.

Tokens are read one by one, so the result does not depend on how they were batched:

    token -> messages (`reader.py`) -> stop strings -> text, reasoning, calls -> citations -> deltas

    message of the model                deltas
    to a tool                           the call, whatever the channel
    analysis                            reasoning
    commentary, without a recipient     text: a preamble, in a message of its own
    final, or without a channel         text: the answer
    a channel that harmony has not      reasoning: gpt-oss writes `comment` or `commentaryanalysis`
    to a tool that may not be called    a call that fails (gpt-oss calls python unasked); in harmony a call ends the
                                        turn, and only its result starts the next
    by another author than assistant    none: the model invented it

A second message of the same kind continues the item of the first, after a blank line. A token is settled, and may be
committed, with the first delta that comes out with it or after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from app.protocol.events.deltas import CallArguments, CallStart, Delta, Reasoning, Text
from app.protocol.types import Json
from workers.engine.harmony_vocabulary import ASSISTANT, COMMENTARY, FINAL
from workers.formats.answer import AnswerParser, AnswerRules, merge_deltas
from workers.formats.calls.hosted import NameStyle, OpenCall
from workers.formats.calls.hosted_formats import open_hosted_call
from workers.formats.calls.mcp import unknown_tool
from workers.formats.calls.router import CallRouter
from workers.formats.harmony.messages import FUNCTIONS
from workers.formats.harmony.reader import Content, HarmonyReader, Header, MessagePart
from workers.formats.turn import Parsed

_NO_RECIPIENT = (None, ASSISTANT, "all", "user")
"""Recipients that make no call."""


class TargetKind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Target:
    """The deltas that the text of a message becomes."""

    kind: TargetKind
    phase: Literal["commentary", "final_answer"] | None = None


class HarmonyCallRouter(CallRouter):
    """Routes calls by recipient: `functions.f` or `f` is the client's; hosted tools have names of their own."""

    def _open_call(self, name: str) -> OpenCall:
        if name in self._tools.hosted:
            return open_hosted_call(self._tools.hosted[name])
        call = self._client_call(name.removeprefix(FUNCTIONS))
        return open_hosted_call(unknown_tool(name, NameStyle.HARMONY)) if call is None else call


class HarmonyParser(AnswerParser):
    """See `workers.formats.turn.TurnParser`. `end_tokens` end the answer and are no text."""

    def __init__(self, rules: AnswerRules, end_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(rules, HarmonyCallRouter)
        self._reader = HarmonyReader()
        self._end_tokens = end_tokens
        self._target = Target(TargetKind.NOTHING)
        self._last = Target(TargetKind.NOTHING)
        """The target of the last delta."""
        self._begins = True
        """The open message has no text yet."""

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        deltas: list[Delta] = []
        settled: list[int] = []
        for token in token_ids:
            if self.ended:
                break
            if new := self._citations.feed(self._feed_token(token)):
                deltas += new
                settled += self._settle()
        return Parsed(merge_deltas(deltas), tuple(settled))

    def flush(self, *, cut: bool = False) -> Parsed:
        deltas: list[Delta] = []
        if not self.ended:
            for part in self._reader.flush():
                deltas += self._part(part) if isinstance(part, Content) else self._text_deltas(self._stops.flush())
        if not self._calls.ended:
            deltas += self._calls.flush(cut=cut, stopped=self._stops.found)
        return Parsed(merge_deltas(self._citations.feed(deltas)), tuple(self._settle()))

    def _feed_token(self, token: int) -> list[Delta]:
        self.tokens += 1
        self._unsettled.append(token)
        parts = self._reader.feed(token) if token not in self._end_tokens else ()
        deltas = [delta for part in parts for delta in self._part(part)]
        reasons = self._target.kind is TargetKind.REASONING
        self.reasoning_tokens += reasons and any(isinstance(part, Content) for part in parts)
        return deltas

    def _part(self, part: MessagePart) -> list[Delta]:
        if isinstance(part, Content):
            exempt = self.tokens <= self._min_tokens or self._target.kind is TargetKind.REASONING
            return self._text_deltas(self._stops.feed(part.text, exempt=exempt))
        deltas = self._text_deltas(self._stops.flush())  # no stop string spans two messages
        return deltas + (self._header(part) if isinstance(part, Header) else self._calls.flush())

    def _header(self, header: Header) -> list[Delta]:
        self._target, self._begins = _target_of(header), True
        if self._target.kind is not TargetKind.CALL:
            return []
        self._last = self._target
        return self._calls.feed([CallStart(header.recipient or "")])

    def _text_deltas(self, text: str) -> list[Delta]:
        target = self._target
        if not text:
            return []
        if target.kind is TargetKind.CALL:
            return self._calls.feed([CallArguments(text)])
        if target.kind is TargetKind.NOTHING:
            return []
        gap = "\n\n" if self._begins and self._last == target else ""
        self._begins, self._last = False, target
        if target.kind is TargetKind.REASONING:
            return [Reasoning(gap + text)]
        return [Text(gap + text, phase=target.phase)]


def _target_of(header: Header) -> Target:
    if header.role != ASSISTANT:
        return Target(TargetKind.NOTHING)
    if header.recipient not in _NO_RECIPIENT:
        return Target(TargetKind.CALL)
    if header.channel == COMMENTARY:
        return Target(TargetKind.TEXT, "commentary")
    if header.channel is None or header.channel.startswith(FINAL):
        return Target(TargetKind.TEXT, "final_answer")
    return Target(TargetKind.REASONING)
