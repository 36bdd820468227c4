"""How finely a response is cut into chunks and events: the setting, and how the engine's deltas follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.engine.base import EngineDelta
from workers.formats.deltas import merge_deltas
from workers.formats.turn import Parsed, TurnParser

UNSTREAMED_INTERVAL_SECONDS = 0.5
"""The shortest interval between two chunks of a response that nobody can stream. A poll sees text this much later, and
after a crash the next worker generates this much again."""
UNSTREAMED_TOKENS = 16
"""Tokens of one delta of such a response. If each token were a delta, the worker would take twice the CPU
(docs/decisions/short-jobs.md)."""

NOTHING = Parsed()


@dataclass(frozen=True, slots=True)
class Granularity:
    """How finely a worker cuts the output of its responses."""

    interval: float = 0.0
    """The shortest time between two chunks of one response, in seconds."""
    events_per_second: float = 0.0
    """The most events per second of all responses together (flush_clock.py); 0: no bound."""
    per_token: bool = False
    """Each token is an event of its own; else neighbouring deltas of a kind are one event."""
    tokens_per_delta: int = 1
    """How many tokens the engine may gather for one delta."""

    def for_response(self, *, streamed: bool) -> Granularity:
        """The granularity of one response: coarse if nobody can read its events."""
        if streamed:
            return self
        interval = max(self.interval, UNSTREAMED_INTERVAL_SECONDS)
        return Granularity(interval, self.events_per_second, tokens_per_delta=UNSTREAMED_TOKENS)


def parse(parser: TurnParser, delta: EngineDelta, *, per_token: bool) -> Parsed:
    """Parses what the engine generated, up to the end of the answer. `per_token`: each token has deltas of its own."""
    if not per_token:
        return parser.feed(delta.token_ids, delta.logprobs)
    parsed = NOTHING
    for index, token in enumerate(delta.token_ids):
        if parser.ended:
            break
        parsed += parser.feed((token,), delta.logprobs[index : index + 1])
    return parsed


def coalesce(pieces: Sequence[Parsed], *, per_token: bool) -> Parsed:
    """Joins the pieces, and merges neighbouring deltas of a kind unless each token is an event."""
    deltas = tuple(delta for piece in pieces for delta in piece.deltas)
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    return Parsed(deltas if per_token else merge_deltas(deltas), tokens)
