"""Whether an answer reasons. Its prompt's end and its first token decide; a request's switch only asks the template.

    prompt ends within thoughts   the answer reasons
    prompt ends behind thoughts   it does not
    neither                       it reasons if it begins with the mark of thoughts; a mark that ends thoughts which it
                                  has not begun (MiniMax M3) is no text

So a parser of thoughts does no harm to a model that has none, and a worker that takes over decides alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any

from app.protocol.events.deltas import Delta
from app.protocol.types import Json
from workers.engine.output_format import OutputParser
from workers.engine.template_efforts import switches

_TAIL = 64
"""Tokens at a prompt's end that are looked at; what templates write behind the last turn is shorter."""


class Start(Enum):
    """The state in which an answer starts."""

    OPEN = "within thoughts"
    CLOSED = "behind thoughts"
    FREE = "before thoughts, if it has any"


def thoughts_args(template_args: Mapping[str, Any], start: Start) -> dict[str, Any]:
    """Template arguments for vLLM's reasoning parsers: where the answer starts takes the place of switches."""
    reasons = start is not Start.CLOSED
    made = {**template_args, **switches(reasons)}
    if reasons and template_args.get("reasoning_effort") in (None, "none", "no_think"):
        made["reasoning_effort"] = "high"  # the parsers of HY V3 and DeepSeek V4 look at it, too
    return {**made, "thinking_mode": "enabled"} if start is Start.OPEN else made  # MiniMax M3's


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The marks of a model's thoughts, as its reasoning parser has them."""

    begin: str
    end: str
    tokenizer: Any
    token: int | None
    """The token of `begin`, if it is one token."""
    others: frozenset[int]
    """Tokens that mark anything else: turns above all."""

    @classmethod
    def of(cls, begin: str, end: str, tokenizer: Any, end_tokens: frozenset[int]) -> Thoughts:
        added = tokenizer.get_added_vocab()
        own = {token for text, token in added.items() if text in begin or text in end}
        return cls(begin, end, tokenizer, added.get(begin), end_tokens.union(added.values()) - own)

    def start(self, prompt: Sequence[int]) -> Start:
        """Looks behind the last turn, where nothing is a caller's word."""
        tail = list(takewhile(lambda token: token not in self.others, reversed(prompt[-_TAIL:])))[::-1]
        text: str = self.tokenizer.decode(tail, skip_special_tokens=False)
        if len(tail) in (_TAIL, len(prompt)):  # no turn begins there: only the very end is the template's
            text = text.rstrip()[-max(len(self.begin), len(self.end)) :]
        opened, closed = text.rfind(self.begin), text.rfind(self.end)
        return Start.FREE if opened == closed else Start.OPEN if opened > closed else Start.CLOSED

    def prompt(self, start: Start) -> list[int]:
        """The facts about the prompt that vLLM's parsers need."""
        mark = {Start.OPEN: self.begin, Start.CLOSED: self.end}.get(start, "")
        tokens: list[int] = self.tokenizer.encode(mark, add_special_tokens=False)
        return tokens

    def tag(self, tag: str, start: Start, *, reasoner: bool) -> str:
        """The structural tag of an answer that may begin with thoughts, or ends them. `reasoner`: the engine skips
        thoughts that the prompt has begun."""
        if start is Start.CLOSED or (start is Start.OPEN and reasoner):
            return tag
        made = json.loads(tag)
        begin = "" if start is Start.OPEN else self.begin
        thoughts: Json = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": self.end}
        first = thoughts if start is Start.OPEN else {"type": "optional", "content": thoughts}
        return json.dumps({**made, "format": {"type": "sequence", "elements": [first, made["format"]]}})


class FreeParser:
    """Reads an answer that reasons if it begins with thoughts. See `workers.engine.output_format.OutputParser`."""

    def __init__(self, thoughts: Thoughts, make: Callable[[Start], OutputParser]) -> None:
        """`make`: the parser of an answer that begins with thoughts (FREE), ends them at once (OPEN), or has none
        (CLOSED)."""
        self._starts = {thoughts.begin: Start.FREE, thoughts.end: Start.OPEN}
        self._token = thoughts.token
        self._make = make
        self._parser: OutputParser | None = None
        self._held: list[tuple[str, Sequence[int]]] = []

    @property
    def plain(self) -> bool:
        return self._parser is not None and self._parser.plain

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        if self._parser is not None:
            return self._parser.feed(text, token_ids)
        self._held.append((text, token_ids))
        said = "".join(text for text, _ in self._held).lstrip()
        if not said and self._token in token_ids:  # a mark may have no text
            return self._begin(Start.FREE)
        start = next((start for mark, start in self._starts.items() if said.startswith(mark)), None)
        if start is None and any(mark.startswith(said) for mark in self._starts):
            return []
        return self._begin(start or Start.CLOSED)

    def flush(self, *, cut: bool) -> list[Delta]:
        begun = self._begin(Start.CLOSED) if self._parser is None else []
        return begun + self._parser.flush(cut=cut) if self._parser is not None else begun

    def _begin(self, start: Start) -> list[Delta]:
        self._parser = parser = self._make(start)
        return [delta for text, token_ids in self._held for delta in parser.feed(text, token_ids)]
