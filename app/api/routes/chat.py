"""`/v1/chat/completions`: the same responses, asked for and answered as chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.body import read_request
from app.api.dependencies import Runtime, current_project, idempotency_key, origin_of, runtime_of
from app.api.docs import routes
from app.api.docs.routes import error_answers
from app.api.foreground import Attach, ForegroundReply
from app.api.routes.route import Body, Route
from app.api.view import View, padded
from app.chat.completion import completion
from app.chat.names import Names
from app.chat.request import CreateChatCompletion
from app.chat.stream import ChatStream
from app.chat.translation import ChatRequest, chat_request
from app.protocol.errors import ApiError
from app.protocol.events.frames import KEEPALIVE
from app.protocol.types import Json
from app.responses.read.attached import AttachedResponse
from app.responses.read.reader import Pulse
from app.responses.read.side_answers import check_not_cancelled

router = APIRouter(prefix="/v1/chat", tags=["chat"], route_class=Route)

RESPONSE_HEADER = "x-longhaul-response"
"""The id of the response behind a completion."""


@router.post(
    "/completions",
    summary="Create a chat completion",
    responses={200: routes.COMPLETION_OR_CHUNKS, **error_answers(404, 413, 415, 429, 500, 504)},
    openapi_extra={"parameters": routes.CREATE_PARAMETERS},
)
async def create_chat_completion(request: Annotated[Request, Body(CreateChatCompletion)]) -> Response:
    """A foreground response, shown as a completion or, with `stream`, as chat chunks.

    A client that disconnects cancels it, unless it sent an `Idempotency-Key`. With `store` true, the response is kept:
    the header `x-longhaul-response` has its id.
    """
    runtime, project = await runtime_of(request), await current_project(request)
    key, origin = await idempotency_key(request), await origin_of(request)
    sent = await read_request(request, runtime.settings, chat_request)
    attach = partial(runtime.responses.attach, project, sent, key, origin=origin)
    return ForegroundReply(
        partial(_renaming, attach, sent.names),
        runtime.shutdown.over,
        stream=sent.stream,
        detachable=key is not None,
        view=_view(runtime, sent),
    )


@asynccontextmanager
async def _renaming(attach: Attach, names: Names) -> AsyncIterator[AttachedResponse]:
    """`attach`, whose errors name the fields of the chat request."""
    attaching = attach()
    del attach  # It has the request in it.
    try:
        async with attaching as response:
            del attaching
            yield response
    except ApiError as error:
        error.error = names.error(error.error)
        raise


def _view(runtime: Runtime, sent: ChatRequest) -> View:
    thinks = sent.include_reasoning
    writer = ChatStream(sent.names, include_usage=sent.include_usage, include_reasoning=thinks)
    return View(
        partial(_frames, writer, pads=sent.obfuscation),
        partial(_body, runtime.shutdown.over.is_set, include_reasoning=thinks),
        _headers,
        works=True,
    )


def _frames(writer: ChatStream, pulse: Pulse, *, pads: bool) -> bytes:
    if pulse is None or pulse.first > pulse.last:  # A repeated status has no form in chat.
        return KEEPALIVE
    made = writer.frames(pulse.frames)
    return b"".join(padded(frame) if b'"delta":' in frame else frame for frame in made) if pads else b"".join(made)


def _body(stops: Callable[[], bool], response: Json, *, include_reasoning: bool) -> Json:
    check_not_cancelled(stops, response)
    return completion(response, include_reasoning=include_reasoning)


def _headers(response_id: str) -> Mapping[str, str]:
    return {RESPONSE_HEADER: response_id}
