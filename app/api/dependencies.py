"""What routes need, from the app's lifespan; and whose request it is.

All of it is async: FastAPI sends every other dependency to a thread, which costs a request more than all its checks.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, TypedDict, cast

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from app.api.shutdown import Shutdown
from app.protocol.errors import InvalidRequest
from app.protocol.text import shortened
from app.responses.conversations import ConversationService
from app.responses.service import ResponseService
from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from config.settings import Settings

DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one API process is made of; `app.main` builds it."""

    settings: Settings
    catalog: ModelCatalog
    db: Database
    pubsub: PubSub
    responses: ResponseService
    conversations: ConversationService
    shutdown: Shutdown
    started_at: int
    """Epoch seconds."""


class State(TypedDict):
    """The lifespan's state, as Starlette hands it to requests."""

    runtime: Runtime


async def runtime_of(request: Request) -> Runtime:
    return cast(Runtime, request.state.runtime)


async def current_project() -> str:
    """Whose responses a request sees. There are no API keys yet, so there is one project."""
    return DEFAULT_PROJECT


def only_query(*names: str, repeated: Collection[str] = ()) -> Callable[[HTTPConnection], Awaitable[None]]:
    """Refuses query parameters that are not among `names`, and any that comes twice: none is ignored silently.

    Those among `repeated` may come several times.
    """

    async def check(request: HTTPConnection) -> None:
        if not request.scope["query_string"]:
            return
        seen: set[str] = set()
        for name, _ in request.query_params.multi_items():
            shown = shortened(name)
            if name not in names:
                raise InvalidRequest(f"Unknown query parameter: '{shown}'.", shown, "unknown_parameter")
            if name in seen and name not in repeated:
                raise InvalidRequest(f"The query parameter '{shown}' comes twice.", shown, "invalid_value")
            seen.add(name)

    return check


IDEMPOTENCY_KEY = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def idempotency_key(request: Request) -> str | None:
    """The caller's name for this request, if it has one. Raises InvalidRequest."""
    sent = request.headers.getlist(IDEMPOTENCY_KEY)
    if not sent:
        return None
    if len(sent) > 1 or not _KEY.fullmatch(sent[0]):
        message = f"Invalid '{IDEMPOTENCY_KEY}': expected 1 to 255 printable ASCII characters without spaces."
        raise InvalidRequest(message, IDEMPOTENCY_KEY, "invalid_value")
    return sent[0]


Key = Annotated[str | None, Depends(idempotency_key)]
RuntimeOf = Annotated[Runtime, Depends(runtime_of)]
Project = Annotated[str, Depends(current_project)]
