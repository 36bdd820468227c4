"""One turn of a model: what every format has to know (`TurnPlan`), what a format makes of it (`Draft`), and what the
runner generates (`Turn`): a prompt, sampling parameters, and a parser of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.protocol.errors import InvalidRequest
from app.protocol.events.deltas import Delta
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from app.protocol.types import Json
from config.models import ServedModel
from workers.engine.base import Engine, InvalidSampling, Sampling
from workers.formats.answer import AnswerRules
from workers.formats.calls.client_tools import ClientTools
from workers.formats.calls.hosted import HostedCall, HostedTools
from workers.formats.calls.tools import Tools
from workers.formats.truncation import Render


@dataclass(frozen=True, slots=True)
class Parsed:
    """The deltas of some tokens, and the tokens that may be committed with them.

    A token whose text is held back comes later, with the delta that brings its text.
    """

    deltas: tuple[Delta, ...] = ()
    tokens: tuple[int, ...] = ()

    def __add__(self, other: Parsed) -> Parsed:
        return Parsed(self.deltas + other.deltas, self.tokens + other.tokens)


NOTHING = Parsed()


class TurnParser(Protocol):
    """One answer's token ids to deltas: a function of the whole token list, however it was batched.

    A new parser that is fed the committed tokens of an answer has the state of the parser that first read them.
    """

    @property
    def ended(self) -> bool:
        """Whether the answer is over before the model ends it: at a stop string, or at one call too many."""

    @property
    def tokens(self) -> int:
        """Tokens read so far, up to the end of the answer."""

    @property
    def reasoning_tokens(self) -> int:
        """How many of them are reasoning."""

    @property
    def calls(self) -> Sequence[HostedCall]:
        """The complete calls so far that the server has to run, in the order of their items."""

    @property
    def searched(self) -> bool:
        """Whether the server has found tools for the model, which it may call in its next turn."""

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        """What is certain after these tokens; `logprobs`, if requested, has one entry for each of them."""

    def flush(self, *, cut: bool = False) -> Parsed:
        """What was held back, after the last token. `cut`: a limit ended the answer, perhaps within a call."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn of this response, which ended in hosted calls that all have their results."""

    tokens: tuple[int, ...]
    items: tuple[Json, ...]
    """The output items; hosted calls hold `call`: name, arguments and result as the model wrote and read them."""


MessagesOf = Callable[[Sequence[int]], Mapping[str, Any]]
"""See `Turn.messages`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a model, about to be generated."""

    prompt: tuple[int, ...]
    sampling: Sampling
    parser: Callable[[], TurnParser]
    """Makes a new parser of the answer."""
    messages: MessagesOf | None = None
    """From this turn's tokens: the model's own messages for the response object (`Finish.messages`). None if the
    request did not ask for them."""


Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """The next turn of a stored request, after its `past` turns."""

    engine: Engine
    model: ServedModel
    request: Mapping[str, Any]
    past: Sequence[PastTurn]
    created_at: int
    """When the response was created, in seconds since the epoch."""
    hosted: HostedTools
    client: ClientTools
    tools: Tools

    @property
    def may_take_long(self) -> bool:
        """Whether its draft may wait for a grammar to be tried, for a minute perhaps."""
        return bool(self.tools.all) or self.request["text"]["format"]["type"] != "text"


@dataclass(frozen=True, slots=True)
class Draft:
    """The turn in a format, before its items are cut to what fits."""

    sampling: Sampling
    """The sampling of the whole answer: earlier turns have spent some of its tokens."""
    render: Render
    parser: Callable[[Prompt, AnswerRules], TurnParser]
    """Makes a new parser of the answer to a prompt."""
    messages: Callable[[Prompt], MessagesOf] | None = None
    """The model's own messages, with a prompt; None if the request did not ask for them."""


def check_format(request: Mapping[str, Any], capabilities: Capabilities) -> None:
    """Raises InvalidSampling for what a format cannot do. The API refuses it too, if it knows the model's format."""
    try:
        check_capabilities(request, capabilities)
    except InvalidRequest as error:
        raise InvalidSampling(error.error.message) from None
