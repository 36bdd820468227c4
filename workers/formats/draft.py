"""A turn in the making: what every format has to know (`TurnPlan`), and what a format makes of it (`Draft`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from config.models import ServedModel
from workers.engine.base import Engine, InvalidSampling, Sampling
from workers.formats.answer import AnswerRules
from workers.formats.calls.client_tools import ClientTools
from workers.formats.calls.hosted import HostedTools
from workers.formats.calls.tools import Tools
from workers.formats.truncation import Render
from workers.formats.turn import MessagesOf, PastTurn, TurnParser

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
