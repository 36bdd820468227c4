"""What the runner needs of a model's format: a prompt, sampling parameters, and parsers of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.protocol.events.deltas import Delta
from workers.engine.base import Sampling
from workers.engine.output_format import Json
from workers.formats.calls.hosted import HostedCall


@dataclass(frozen=True, slots=True)
class Parsed:
    """What some tokens said. Tokens whose text is still held back come with the deltas that bring it."""

    deltas: tuple[Delta, ...] = ()
    tokens: tuple[int, ...] = ()

    def __add__(self, other: Parsed) -> Parsed:
        return Parsed(self.deltas + other.deltas, self.tokens + other.tokens)


class TurnParser(Protocol):
    """One response's token ids -> deltas: a function of the whole token list, however it was batched.

    A parser that is fed a response's committed tokens is where the one was that they came from.
    """

    @property
    def ended(self) -> bool:
        """The answer is over, whatever the model would add (a stop string, a call too many)."""

    @property
    def tokens(self) -> int:
        """Tokens taken so far: none behind the end."""

    @property
    def reasoning_tokens(self) -> int:
        """Those of them that are reasoning."""

    @property
    def calls(self) -> Sequence[HostedCall]:
        """The calls so far that the server has to run, in the order of their items."""

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        """What these tokens add for certain; `logprobs`, where asked for, has one for each of them."""

    def flush(self, *, cut: bool = False) -> Parsed:
        """What was held back, once the last token is there. `cut`: by a limit, in the middle of anything."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn of this response that ended in calls which the server ran, all of which have their results."""

    tokens: tuple[int, ...]
    items: tuple[Json, ...]
    """The output items that it made; those that the server ran hold `call`: name, arguments and result, as the
    model wrote and was told them."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a response knows before its first turn, and every later attempt again."""

    created_at: int = 0
    """Seconds since the epoch."""
    listings: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """The tools of MCP servers, by their label, as an mcp_list_tools item has them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a model, about to be generated."""

    prompt: tuple[int, ...]
    sampling: Sampling
    parser: Callable[[], TurnParser]
    """Makes a fresh one."""
    messages: Callable[[Sequence[int]], Mapping[str, Any]] | None = None
    """Of this turn's tokens: what the response object shows of the model's own messages (`Finish.messages`); None
    where nothing was asked for."""
