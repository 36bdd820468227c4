"""`/v1/responses`: create, read, stream, cancel, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.access.charges import left
from app.api.body import read_request
from app.api.dependencies import (
    HoldOf,
    Project,
    Runtime,
    RuntimeOf,
    current_project,
    hold_of,
    idempotency_key,
    origin_of,
    runtime_of,
)
from app.api.docs import routes, schemas
from app.api.docs.routes import error_answers
from app.api.errors import encoded_reply, reply
from app.api.foreground import Attach, AttendedReply, ForegroundReply, LongPoll
from app.api.queries import ItemsQuery, ReadQuery
from app.api.rate_limits import headers_of
from app.api.response_lists.objects import ListedObject, ResponsesPage
from app.api.response_lists.queries import ResponsesQuery, filter_of
from app.api.routes.route import Asked, Body, Route
from app.api.sse import EventStream, OpenEvents
from app.api.view import NO_HEADERS, PADDED, PLAIN, View
from app.protocol.requests.bodies.compaction import Compact, compact_request
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.input_tokens import CountTokens, count_request
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.responses.models.catalog import only_model
from app.responses.read.reader import Shown
from app.responses.read.side_answers import compacted
from app.store.operations import listing

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=Route)

_GENERATING = error_answers(404, 413, 415, 429, 500, 504)

POLL_AFTER_MS = 1000
"""After how many milliseconds a client should poll again (`openai-poll-after-ms`)."""


def _response(shown: Shown, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """Replies with a response object, and tells when to poll again unless the response is final."""
    polling = headers if shown.final else {**headers, "openai-poll-after-ms": str(POLL_AFTER_MS)}
    return encoded_reply(shown.body, headers=polling)


def _foreground(
    runtime: Runtime, attach: Attach, sent: ResponseRequest, view: View = PLAIN, *, detachable: bool = False
) -> ForegroundReply:
    return ForegroundReply(attach, runtime.shutdown.over, stream=sent.stream, detachable=detachable, view=view)


def _events(runtime: Runtime, project: str, open_events: OpenEvents, *, obfuscation: bool) -> EventStream:
    return EventStream(open_events, runtime.reader.readers, project, runtime.shutdown.begun, _view(obfuscation))


def _view(obfuscation: bool) -> View:
    return PADDED if obfuscation else PLAIN


@router.post(
    "",
    summary="Create a response",
    responses={200: routes.RESPONSE_OR_EVENTS, **_GENERATING},
    openapi_extra={"parameters": routes.CREATE_PARAMETERS},
)
async def create_response(
    request: Annotated[Request, Body(CreateResponse, examples=routes.CREATE_EXAMPLES)],
) -> Response:
    """Four forms, by `background` and `stream`:

    * neither: the answer is the finished response; a client that disconnects cancels it;
    * `stream`: the answer is its events as they come; a client that disconnects cancels it;
    * `background`: the answer is the `queued` response, at once; it runs without any client;
    * both: as `background`, and its events can be read from any sequence number on, any number of times.
    """
    # Called, not depended on, so that FastAPI is passed by (route.py). This and the GET are the most requests.
    runtime, project = await runtime_of(request), await current_project(request)
    key, origin, service = await idempotency_key(request), await origin_of(request), runtime.responses
    sent = await read_request(request, runtime.settings, checked_request)
    if not sent.background:
        attach = partial(service.attach, project, sent, key, origin=origin)
        return _foreground(runtime, attach, sent, _view(sent.obfuscation), detachable=key is not None)
    if sent.stream:
        start = partial(service.start_stream, project, sent, key, origin)
        return _events(runtime, project, start, obfuscation=sent.obfuscation)
    created = await service.start(project, sent, key, origin, await hold_of(request))
    return _response(created.shown, headers_of(created.allowance))


@router.post(
    "/input_tokens", summary="Count the tokens of a prompt", response_model=schemas.InputTokens, responses=_GENERATING
)
async def count_tokens(
    request: Annotated[Request, Body(CountTokens)], runtime: RuntimeOf, project: Project
) -> Response:
    """Returns how many tokens the prompt has. A worker of the model counts them before other work."""
    as_request = partial(count_request, only_model=only_model(await runtime.catalogs.of(project)))
    counted = await read_request(request, runtime.settings, as_request)
    return AttendedReply(runtime.responses.counter.asked(project, counted), _input_tokens, runtime.shutdown.over)


def _input_tokens(tokens: int) -> Response:
    return reply({"object": "response.input_tokens", "input_tokens": tokens}, headers=headers_of(left()))


@router.post("/compact", summary="Compact a conversation", response_model=schemas.Compaction, responses=_GENERATING)
async def compact(request: Annotated[Request, Body(Compact)], runtime: RuntimeOf, project: Project) -> Response:
    """The model writes a summary, and the answer holds it sealed in one item.

    Send that item as the first of `input`.
    """
    summarised = await read_request(request, runtime.settings, compact_request)
    attach = partial(runtime.responses.attach, project, summarised, origin=await origin_of(request))
    return _foreground(runtime, attach, summarised, View(body=partial(compacted, runtime.shutdown.over.is_set)))


@router.get("", summary="List responses", responses=error_answers(404))
async def list_responses(
    query: Asked[ResponsesQuery], runtime: RuntimeOf, project: Project
) -> ResponsesPage[ListedObject]:
    """The project's responses without their input and output, the newest first. OpenAI's API has no such list.

    A page may have fewer entries than `limit`, or none, while `has_more` is true: the next one goes on behind
    `last_id`.
    """
    only = replace(filter_of(query), project=project, only_kept=True)
    if only.batch is not None:
        await runtime.batches.check(project, only.batch, "batch")
    return ResponsesPage.of_found(await listing.find_page(runtime.db, only, query.page), ListedObject.of)


@router.get("/{response_id}", summary="Read a response, or its events", responses={200: routes.RESPONSE_OR_EVENTS})
async def get_response(request: Request, response_id: str, query: Asked[ReadQuery]) -> Response:
    """While it is in progress, the response has its output so far.

    With `wait` the answer comes once the response has ended, or after so many seconds.

    With `stream=true` the answer is the events after number `starting_after`, up to the end of the response. The
    response must have been created with `stream`, and be stored or run in the background.
    """
    runtime, project = await runtime_of(request), await current_project(request)  # As above.
    included = tuple((query.written("include"), value) for value in query.include)
    if query.stream:
        replay = partial(runtime.reader.replay, project, response_id, query.last_seen, included)
        return _events(runtime, project, replay, obfuscation=query.include_obfuscation)

    async def answer(ended: Shown | None = None) -> Response:
        return _response(ended or await runtime.reader.get(project, response_id, included, await hold_of(request)))

    if query.wait:
        waiting = partial(runtime.reader.until_ended, project, response_id, included, query.wait)
        return LongPoll(waiting, answer, runtime.shutdown.begun)
    return await answer()


@router.get("/{response_id}/input_items", summary="List a response's input items", response_model=schemas.ItemList)
async def list_input_items(
    response_id: str, query: Asked[ItemsQuery], runtime: RuntimeOf, project: Project, hold: HoldOf
) -> Response:
    return encoded_reply(await runtime.reader.input_items(project, response_id, query.page, hold))


@router.post("/{response_id}/cancel", summary="Cancel a response", response_model=schemas.Response)
async def cancel_response(response_id: str, runtime: RuntimeOf, project: Project, hold: HoldOf) -> Response:
    return _response(await runtime.canceller.cancel(project, response_id, hold))


@router.delete("/{response_id}", summary="Delete a response", response_model=schemas.Deleted)
async def delete_response(response_id: str, runtime: RuntimeOf, project: Project) -> Response:
    await runtime.canceller.delete(project, response_id)
    return reply({"id": response_id, "object": "response", "deleted": True})
