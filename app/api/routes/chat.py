"""`/v1/chat/completions`: the same responses, asked for and answered as chat completions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.docs import routes
from app.api.docs.routes import error_answers
from app.api.routes.route import Body, Route
from app.api.routes.translated import foreground_answer, response_header, translated_frames
from app.api.view import View, padded
from app.chat.completion import completion
from app.chat.request import CreateChatCompletion
from app.chat.stream import ChatStream
from app.chat.translation import ChatRequest, chat_request
from app.protocol.events.frames import KEEPALIVE_COMMENT

router = APIRouter(prefix="/v1/chat", tags=["chat"], route_class=Route)


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
    return await foreground_answer(request, chat_request, _view)


def _view(sent: ChatRequest) -> View:
    thinks = sent.include_reasoning
    writer = ChatStream(sent.names, include_usage=sent.include_usage, include_reasoning=thinks)
    return View(
        partial(translated_frames, partial(_frames, writer, pads=sent.obfuscation), KEEPALIVE_COMMENT),
        partial(completion, include_reasoning=thinks),
        response_header,
        works=True,
    )


def _frames(writer: ChatStream, encoded: bytes, *, pads: bool) -> list[bytes]:
    made = writer.frames(encoded)
    return [padded(frame) if b'"delta":' in frame else frame for frame in made] if pads else made
