"""The turns of a response, from its log: their tokens, the calls that ran on the server, and the results.

A response is one turn after another: tokens, then the calls among them, then the tokens of the next turn. Steps in its
chunks say where it stands:

    {"end": {...}}       the current turn has ended, its calls may begin; tokens of later chunks are the next turn's
    {"result": {...}}    a call has ended, and this is what the model gets of it
    {"compaction": ...}  the context was summarised; tokens of later chunks are the first turn's

So a call with a result is never made twice. A call without a result behind an "end" may have been made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from app.protocol.events.chunk import Chunk
from app.protocol.types import Json
from app.protocol.usage import Usage
from workers.formats.calls.hosted import HostedCall
from workers.formats.turn import PastTurn


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that ended in calls of hosted tools. Indexes are those of output items."""

    tokens: tuple[int, ...]
    start: int
    """The index of its first item."""
    stop: int
    """The index behind its last item."""
    usage: Usage
    calls: Mapping[int, HostedCall]
    """Index of an item -> its call."""

    def as_step(self) -> Json:
        return {
            "end": {
                "items": [self.start, self.stop],
                "usage": self.usage.counts(),
                "calls": {str(index): asdict(call) for index, call in self.calls.items()},
            }
        }

    @classmethod
    def from_step(cls, end: Json, tokens: tuple[int, ...]) -> EndedTurn:
        start, stop = end["items"]
        calls = {int(index): HostedCall(**call) for index, call in end["calls"].items()}
        return cls(tokens, start, stop, Usage(**end["usage"]), calls)


@dataclass(frozen=True, slots=True)
class EndedCompaction:
    """The summary that a response made of its context before its first turn."""

    index: int
    """Position of its output item."""
    usage: Usage

    def as_step(self) -> Json:
        return {"compaction": {"index": self.index, "usage": self.usage.counts()}}

    @classmethod
    def from_step(cls, step: Json) -> EndedCompaction:
        return cls(step["index"], Usage(**step["usage"]))


@dataclass(slots=True)
class History:
    """The turns of one response so far."""

    turns: list[EndedTurn] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    """Committed tokens of the current turn."""
    compaction: EndedCompaction | None = None
    input_tokens: int = 0
    """Tokens of prompts that the log counts."""
    cached_tokens: int = 0
    results: dict[int, Json] = field(default_factory=dict)
    """What the model gets of the calls, by the indexes of their items: `call` in app/store/context/contents.py."""

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> History:
        history = cls()
        tokens: list[int] = []
        for chunk in chunks:
            tokens.extend(chunk.tokens)
            history.input_tokens += chunk.input_tokens
            history.cached_tokens += chunk.cached_tokens
            for step in chunk.steps:
                if "end" in step:
                    history.end_turn(EndedTurn.from_step(step["end"], tuple(tokens)))
                    tokens.clear()
                elif "compaction" in step:
                    history.end_compaction(EndedCompaction.from_step(step["compaction"]))
                    tokens.clear()
                else:
                    history.results[step["result"]["index"]] = step["result"]["call"]
        history.tokens = tuple(tokens)
        return history

    def end_turn(self, turn: EndedTurn) -> None:
        self.turns.append(turn)
        self.tokens = ()

    def end_compaction(self, compaction: EndedCompaction) -> None:
        self.compaction = compaction
        self.tokens = ()

    def count(self, input_tokens: int, cached_tokens: int) -> tuple[int, int]:
        """Counts the prompt of the current turn; returns the tokens of both kinds that the log does not count yet.

        A later attempt comes to the same prompts, and counts none of them again.
        """
        read = Usage.of([*self.usage, Usage(input_tokens, min(cached_tokens, input_tokens))])
        more = max(read.input_tokens - self.input_tokens, 0), max(read.cached_tokens - self.cached_tokens, 0)
        self.input_tokens += more[0]
        self.cached_tokens += more[1]
        return more

    def add_result(self, index: int, call: HostedCall, result: Any, sources: Json) -> Json:
        """Records the result of a call; returns the step for the log."""
        answered = {**asdict(call), "turn": len(self.turns), "result": result}
        self.results[index] = {**answered, "sources": sources} if sources else answered
        return {"result": {"index": index, "call": self.results[index]}}

    @property
    def unanswered(self) -> dict[int, HostedCall]:
        """The calls of the last turn that have no result."""
        calls = self.turns[-1].calls if self.turns else {}
        return {index: call for index, call in calls.items() if index not in self.results}

    @property
    def generations(self) -> int:
        """How often the engine has generated to an end."""
        return len(self.turns) + (self.compaction is not None)

    @property
    def usage(self) -> list[Usage]:
        """The usage of the compaction and of the ended turns."""
        compaction = () if self.compaction is None else (self.compaction.usage,)
        return [*compaction, *(turn.usage for turn in self.turns)]

    @property
    def spent(self) -> int:
        """The number of tokens in the ended turns."""
        return sum(len(turn.tokens) for turn in self.turns)

    @property
    def tool_results(self) -> Json:
        """`Ending.tool_results`."""
        return {str(index): call for index, call in self.results.items()}

    def with_calls(self, output: Sequence[Json], start: int, stop: int) -> tuple[Json, ...]:
        """The output items from `start` to `stop`, each call with its result, as a model's format reads them."""
        return tuple(
            {**output[index], "call": self.results[index]} if index in self.results else output[index]
            for index in range(start, stop)
        )

    def past(self, output: Sequence[Json]) -> tuple[PastTurn, ...]:
        return tuple(PastTurn(turn.tokens, self.with_calls(output, turn.start, turn.stop)) for turn in self.turns)
