"""The common part of all formats' parsers: a request's rules for its answer, their state, and joined deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.protocol.events.deltas import Compacting, Delta, Piece, Text
from workers.formats.calls.hosted import HostedCall
from workers.formats.calls.router import CallableTools, CallRouter
from workers.formats.calls.tools import Tools
from workers.formats.citations import Citations, Sources
from workers.formats.stops import StopStrings


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """A request's rules for its answer besides `OutputSpec`."""

    stop: tuple[str, ...] = ()
    """Strings that end the answer."""
    keep_stop: bool = False
    """Whether the stop string is part of the text."""
    min_tokens: int = 0
    """A stop string counts only after this many tokens."""
    tools: CallableTools = field(default_factory=CallableTools)
    sources: Sources = field(default_factory=dict)
    """The pages that the model may cite."""


def answer_rules_of(request: Mapping[str, Any], tools: Tools, spent: int, sources: Sources) -> AnswerRules:
    """The rules of a stored request for a turn after `spent` output tokens."""
    extra = request["extra"]
    stop = extra.get("stop") or ()
    return AnswerRules(
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        keep_stop=bool(extra.get("include_stop_str_in_output")),
        min_tokens=max((extra.get("min_tokens") or 0) - spent, 0),
        tools=tools.callable,
        sources=sources,
    )


class AnswerParser:
    """The state of one answer in any format; a subclass reads the tokens. See `workers.formats.turn.TurnParser`."""

    def __init__(self, rules: AnswerRules, router: type[CallRouter]) -> None:
        self._stops = StopStrings(rules.stop, keep=rules.keep_stop)
        self._calls = router(rules.tools)
        self._citations = Citations(rules.sources)
        self._min_tokens = rules.min_tokens
        self._unsettled: list[int] = []
        """Tokens whose deltas are still held back."""
        self.tokens = 0
        self.reasoning_tokens = 0

    @property
    def ended(self) -> bool:
        return self._stops.found or self._calls.ended

    @property
    def calls(self) -> Sequence[HostedCall]:
        """Empty if a stop string ended the answer: then the server runs no calls."""
        return () if self._stops.found else tuple(self._calls.hosted)

    @property
    def searched(self) -> bool:
        """Whether the server searched for tools; after a stop string there is no turn for what it found."""
        return self._calls.searched and not self._stops.found

    def _settle(self) -> list[int]:
        """The tokens that may be committed with the deltas that come out now."""
        settled, self._unsettled = self._unsettled, []
        return settled


def merge_deltas(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """The same deltas, with neighbours of one kind joined."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, Text) and isinstance(last, Text):
            if delta.phase == last.phase:
                merged[-1] = replace(last, text=last.text + delta.text, logprobs=last.logprobs + delta.logprobs)
            else:
                merged.append(delta)
        elif isinstance(delta, Piece) and isinstance(last, Piece) and type(delta) is type(last):
            merged[-1] = replace(delta, text=last.text + delta.text)
        elif not (isinstance(delta, Compacting) and isinstance(last, Compacting)):
            merged.append(delta)
    return tuple(merged)
