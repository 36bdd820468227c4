"""What the routes of translated protocols share: a foreground response, asked for and shown in the protocol's terms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from app.api.body import read_request
from app.api.dependencies import current_project, idempotency_key, origin_of, runtime_of
from app.api.foreground import ForegroundReply
from app.api.view import View
from app.protocol.errors import ApiError
from app.protocol.types import Json
from app.responses.read.reader import Pulse
from app.responses.read.side_answers import check_not_cancelled
from app.translation.names import Names
from app.translation.request import TranslatedRequest

RESPONSE_HEADER = "x-longhaul-response"
"""The id of the response behind an answer."""

T = TypeVar("T")
Asked = TypeVar("Asked", bound=TranslatedRequest)


async def foreground_answer(
    request: Request, as_request: Callable[[Mapping[str, Any]], Asked], view_of: Callable[[Asked], View]
) -> Response:
    """Returns the answer to a request that `as_request` makes of its body. Errors name the sender's fields.

    The view's `body` gets no response that was cancelled.
    """
    runtime, project = await runtime_of(request), await current_project(request)
    key, origin = await idempotency_key(request), await origin_of(request)
    sent = await read_request(request, runtime.settings, as_request)
    attach = partial(runtime.responses.attach, project, sent, key, origin=origin)
    view = view_of(sent)
    return ForegroundReply(
        partial(renaming, attach, sent.names),
        runtime.shutdown.over,
        stream=sent.stream,
        detachable=key is not None,
        view=replace(view, body=partial(_body, runtime.shutdown.over.is_set, view.body)),
    )


@asynccontextmanager
async def renaming(enter: Callable[[], AbstractAsyncContextManager[T]], names: Names) -> AsyncIterator[T]:
    """`enter()`, whose errors name the sender's fields."""
    entering = enter()
    del enter  # It has the request in it.
    try:
        async with entering as entered:
            del entering
            yield entered
    except ApiError as error:
        error.error = names.error(error.error)
        raise


def translated_frames(write: Callable[[bytes], list[bytes]], quiet: bytes, pulse: Pulse) -> bytes:
    """Returns what `write` makes of a pulse; `quiet` for one that says nothing, as a repeated status."""
    if pulse is None or pulse.first > pulse.last:
        return quiet
    return b"".join(write(pulse.frames))


def response_header(response_id: str) -> dict[str, str]:
    return {RESPONSE_HEADER: response_id}


def _body(stops: Callable[[], bool], make: Callable[[Json], Json], response: Json) -> Json:
    check_not_cancelled(stops, response)
    return make(response)
