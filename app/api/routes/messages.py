"""`/v1/messages`: the same responses, asked for and answered as Anthropic's API does."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from app.access.charges import left
from app.api.body import read_request
from app.api.dependencies import Project, RuntimeOf
from app.api.docs import routes, schemas
from app.api.errors import REQUEST_ID, reply, request_header
from app.api.foreground import AttendedReply
from app.api.queries import Query
from app.api.rate_limits import headers_of
from app.api.routes.route import Asked, Body, Route
from app.api.routes.translated import foreground_answer, renaming, response_header, translated_frames
from app.api.view import View
from app.messages.answer import AnswerShape, message
from app.messages.request import CountMessageTokens, CreateMessage
from app.messages.stream import PING, MessageStream
from app.messages.translation import MessagesRequest, count_request, messages_request
from app.protocol.types import Json

router = APIRouter(prefix="/v1/messages", tags=["messages"], route_class=Route)

_ERRORS: dict[int | str, Json] = {
    status: {"model": schemas.MessageError} for status in (400, 401, 403, 404, 413, 415, 429, 500, 504, 529)
}


class MessagesQuery(Query):
    beta: Literal["true", "false"] | None = Field(None, description="Anthropic's clients send it. It changes nothing.")


@router.post(
    "",
    summary="Create a message",
    responses={200: routes.MESSAGE_OR_EVENTS, **_ERRORS},
    openapi_extra={"parameters": routes.CREATE_PARAMETERS},
)
async def create_message(request: Annotated[Request, Body(CreateMessage)], query: Asked[MessagesQuery]) -> Response:
    """A foreground response, shown as a message or, with `stream`, as the events of one.

    A client that disconnects cancels it, unless it sent an `Idempotency-Key`. With `store` true, the response is kept:
    the header `x-longhaul-response` has its id.
    """
    return await foreground_answer(request, messages_request, partial(_view, request.scope.get(REQUEST_ID)))


@router.post(
    "/count_tokens", summary="Count the tokens of a message", response_model=schemas.MessageTokens, responses=_ERRORS
)
async def count_message_tokens(
    request: Annotated[Request, Body(CountMessageTokens)],
    query: Asked[MessagesQuery],
    runtime: RuntimeOf,
    project: Project,
) -> Response:
    """Returns how many tokens the prompt has, exactly. A worker of the model counts them before other work."""
    counted = await read_request(request, runtime.settings, count_request)
    asked = renaming(partial(runtime.responses.counter.asked, project, counted), counted.names)
    return AttendedReply(asked, partial(_tokens, request.scope.get(REQUEST_ID)), runtime.shutdown.over)


def _tokens(request_id: str | None, tokens: int) -> Response:
    return reply({"input_tokens": tokens}, headers={**headers_of(left()), **request_header(request_id)})


def _view(request_id: str | None, sent: MessagesRequest) -> View:
    shape = AnswerShape(sent.stops, sent.shows_thoughts, sent.omits_thoughts)
    writer = MessageStream(sent.names, shape, request_id)
    return View(
        partial(translated_frames, writer.frames, PING),
        partial(message, shape=shape),
        lambda response_id: {**response_header(response_id), **request_header(request_id)},
        end=b"",
        works=True,
    )
