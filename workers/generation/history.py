"""What a response's log says of its turns: what was generated, which calls of it ran on the server, what they gave.

Theory. A response is one turn after another: tokens, then the calls among what they said, then the next tokens. Steps
in its chunks say where it stands:

    {"end": {...}}       the current turn ended, and its calls may begin; tokens of later chunks are the next turn's
    {"result": {...}}    one of them is over, and this is what the model is told of it

So a call with its result is never made again; one without, behind an "end", may have been under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.protocol.events.chunk import Chunk
from app.protocol.usage import Usage
from workers.formats.calls.hosted import HostedCall
from workers.formats.turn import PastTurn

Json = dict[str, Any]

_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "tool_output_tokens")


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that ended in calls which the server runs."""

    tokens: tuple[int, ...]
    start: int
    """The place of its first item in the output."""
    stop: int
    """The place behind its last one."""
    usage: Usage
    calls: Mapping[int, HostedCall]
    """By the places of their items."""

    def as_step(self) -> Json:
        return {
            "end": {
                "items": [self.start, self.stop],
                "usage": {name: getattr(self.usage, name) for name in _COUNTS},
                "calls": {str(place): call.as_json() for place, call in self.calls.items()},
            }
        }

    @classmethod
    def from_step(cls, end: Json, tokens: tuple[int, ...]) -> EndedTurn:
        start, stop = end["items"]
        calls = {int(place): HostedCall.from_json(call) for place, call in end["calls"].items()}
        return cls(tokens, start, stop, Usage(**end["usage"]), calls)


@dataclass(slots=True)
class History:
    """The turns of one response so far."""

    turns: list[EndedTurn] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    """Committed tokens of the turn that is under way."""
    results: dict[int, Json] = field(default_factory=dict)
    """What the model was told of calls, by the places of their items: `call` of app/store/context.py."""

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> History:
        history = cls()
        for chunk in chunks:
            history.tokens += chunk.tokens
            for step in chunk.steps:
                if "end" in step:
                    history.ended(EndedTurn.from_step(step["end"], history.tokens))
                else:
                    history.results[step["result"]["index"]] = step["result"]["call"]
        return history

    def ended(self, turn: EndedTurn) -> None:
        """The turn under way is over."""
        self.turns.append(turn)
        self.tokens = ()

    def answered(self, place: int, call: HostedCall, told: Any, sources: Json) -> Json:
        """A call is over; returns the step that says so."""
        said = {**call.as_json(), "turn": len(self.turns), "result": told}
        self.results[place] = {**said, "sources": sources} if sources else said
        return {"result": {"index": place, "call": self.results[place]}}

    @property
    def unanswered(self) -> dict[int, HostedCall]:
        """The calls of the last turn that have no result."""
        calls = self.turns[-1].calls if self.turns else {}
        return {place: call for place, call in calls.items() if place not in self.results}

    @property
    def spent(self) -> int:
        """Tokens of the ended turns."""
        return sum(len(turn.tokens) for turn in self.turns)

    @property
    def tool_results(self) -> Json:
        """`Ending.tool_results`."""
        return {str(place): call for place, call in self.results.items()}

    def shown(self, output: Sequence[Json], start: int, stop: int) -> tuple[Json, ...]:
        """Items of the output as a model's format sees them."""
        return tuple(
            {**output[place], "call": self.results[place]} if place in self.results else output[place]
            for place in range(start, stop)
        )

    def past(self, output: Sequence[Json]) -> tuple[PastTurn, ...]:
        return tuple(PastTurn(turn.tokens, self.shown(output, turn.start, turn.stop)) for turn in self.turns)
