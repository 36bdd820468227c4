"""What routes need, from the app's lifespan; and whose request it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypedDict, cast

from fastapi import Depends, Request

from app.api.service import ResponseService
from app.api.stopping import Stopping
from app.protocol.errors import InvalidRequest
from app.protocol.locations import shortened
from app.relay import Relay
from app.store.database import Database
from config.models import ModelCatalog
from config.settings import Settings

DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one API process is made of; `app.main` builds it."""

    settings: Settings
    catalog: ModelCatalog
    db: Database
    relay: Relay
    service: ResponseService
    stopping: Stopping
    started_at: int
    """Epoch seconds."""


class State(TypedDict):
    """The lifespan's state, as Starlette hands it to requests."""

    runtime: Runtime


def runtime_of(request: Request) -> Runtime:
    return cast(Runtime, request.state.runtime)


def current_project() -> str:
    """Whose responses a request sees. There are no API keys yet, so there is one project."""
    return DEFAULT_PROJECT


def only_query(*names: str) -> Callable[[Request], None]:
    """Refuses query parameters that are not among `names`, and any that comes twice: none is ignored silently."""

    def check(request: Request) -> None:
        seen: set[str] = set()
        for name, _ in request.query_params.multi_items():
            shown = shortened(name)
            if name not in names:
                raise InvalidRequest(f"Unknown query parameter: '{shown}'.", shown, "unknown_parameter")
            if name in seen:
                raise InvalidRequest(f"The query parameter '{shown}' comes twice.", shown, "invalid_value")
            seen.add(name)

    return check


RuntimeOf = Annotated[Runtime, Depends(runtime_of)]
Project = Annotated[str, Depends(current_project)]
