"""`/v1/responses`: create, read, stream, cancel, delete."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.api.body import read_request
from app.api.dependencies import (
    CallerOf,
    Project,
    Runtime,
    RuntimeOf,
    current_caller,
    idempotency_key,
    runtime_of,
)
from app.api.docs import routes, schemas
from app.api.docs.routes import error_answers
from app.api.errors import reply
from app.api.foreground import Attach, ForegroundReply, Shape, unchanged
from app.api.queries import NO_QUERY, ItemsQuery, Query, ReadQuery
from app.api.rate_limits import headers_of
from app.api.sse import NO_HEADERS, EventStream
from app.protocol.requests.bodies.compaction import Compact, compact_request
from app.protocol.requests.bodies.input_tokens import CountTokens, count_request
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.status import Status
from app.protocol.types import Json
from app.queue.message import Priority
from app.responses.models.catalog import only_model
from app.responses.read.side_answers import compacted, input_tokens

router = APIRouter(prefix="/v1/responses", tags=["responses"])

POLL_AFTER_MS = 1000
"""After how many milliseconds a client should poll again (`openai-poll-after-ms`)."""


def _response(body: Json, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """Replies with a response object, and tells when to poll again unless the response is final."""
    final = Status(body["status"]).final
    return reply(body, headers=headers if final else {**headers, "openai-poll-after-ms": str(POLL_AFTER_MS)})


def _foreground(
    runtime: Runtime, attach: Attach, sent: ResponseRequest, *, detachable: bool = False, shape: Shape = unchanged
) -> ForegroundReply:
    # Half of the shutdown's grace is left for the cancellation and its last event.
    grace_seconds = runtime.settings.shutdown_grace_seconds / 2
    return ForegroundReply(
        attach,
        runtime.shutdown,
        grace_seconds,
        stream=sent.stream,
        obfuscation=sent.obfuscation,
        detachable=detachable,
        shape=shape,
    )


@router.post(
    "",
    summary="Create a response",
    description=routes.CREATE_HELP,
    responses={200: routes.RESPONSE_OR_EVENTS, **error_answers(400, 404, 413, 415, 429, 500, 503, 504)},
    openapi_extra={"requestBody": routes.CREATE_BODY, "parameters": routes.CREATE_PARAMETERS},
    response_model=None,
)
async def create_response(request: Request) -> Response:
    # Called, not depended on: FastAPI takes about 6 us for each dependency, and this is the route of most requests.
    await Query.read(request)
    runtime, caller = await runtime_of(request), await current_caller(request)
    key = await idempotency_key(request)
    service, project = runtime.responses, caller.own_project
    sent = await read_request(request, runtime.settings)
    if not sent.background:
        attach = partial(service.attach, project, sent, key, api_key_id=caller.key_id)
        return _foreground(runtime, attach, sent, detachable=key is not None)
    created = await service.start(project, sent, key, caller.key_id)
    response, headers = created.response, headers_of(created.allowance)
    if not sent.stream:
        return _response(response, headers)
    # A repeated key may name an old response, whose events may be deleted already.
    reader = runtime.reader
    events = reader.events(response["id"]) if key is None else await reader.replay(project, response["id"], -1)
    return EventStream(events, runtime.shutdown, obfuscation=sent.obfuscation, headers=headers)


@router.post(
    "/input_tokens",
    summary="Count the tokens of a prompt",
    description=routes.COUNT_HELP,
    responses={200: {"model": schemas.InputTokens}, **error_answers(400, 404, 413, 415, 429, 500, 503, 504)},
    openapi_extra={"requestBody": routes.body_of(CountTokens)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def count_tokens(request: Request, runtime: RuntimeOf, caller: CallerOf) -> Response:
    project = caller.own_project
    as_request = partial(count_request, only_model=only_model(await runtime.catalogs.of(project)))
    counted = await read_request(request, runtime.settings, as_request)
    attach = partial(runtime.responses.attach, project, counted, priority=Priority.URGENT, api_key_id=caller.key_id)
    return _foreground(runtime, attach, counted, shape=input_tokens)


@router.post(
    "/compact",
    summary="Compact a conversation",
    description=routes.COMPACT_HELP,
    responses={200: {"model": schemas.Compaction}, **error_answers(400, 404, 413, 415, 429, 500, 503, 504)},
    openapi_extra={"requestBody": routes.body_of(Compact)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def compact(request: Request, runtime: RuntimeOf, caller: CallerOf) -> Response:
    summarised = await read_request(request, runtime.settings, compact_request)
    attach = partial(runtime.responses.attach, caller.own_project, summarised, api_key_id=caller.key_id)
    return _foreground(runtime, attach, summarised, shape=compacted)


@router.get(
    "/{response_id}",
    summary="Read a response, or its events",
    description=routes.READ_HELP,
    responses={200: routes.RESPONSE_OR_EVENTS, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": ReadQuery.parameters()},
    response_model=None,
)
async def get_response(
    response_id: str, query: Annotated[ReadQuery, Depends(ReadQuery.read)], runtime: RuntimeOf, project: Project
) -> Response:
    included = tuple((query.written("include"), value) for value in query.include)
    if query.stream:
        events = await runtime.reader.replay(project, response_id, query.last_seen, included)
        return EventStream(events, runtime.shutdown, obfuscation=query.include_obfuscation)
    return _response(await runtime.reader.get(project, response_id, included))


@router.get(
    "/{response_id}/input_items",
    summary="List a response's input items",
    responses={200: {"model": schemas.ItemList}, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": ItemsQuery.parameters()},
    response_model=None,
)
async def list_input_items(
    response_id: str, query: Annotated[ItemsQuery, Depends(ItemsQuery.read)], runtime: RuntimeOf, project: Project
) -> Response:
    return reply(await runtime.reader.input_items(project, response_id, query.page))


@router.post(
    "/{response_id}/cancel",
    summary="Cancel a background response",
    responses={200: {"model": schemas.Response}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def cancel_response(response_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.canceller.cancel(project, response_id))


@router.delete(
    "/{response_id}",
    summary="Delete a response",
    responses={200: {"model": schemas.Deleted}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def delete_response(response_id: str, runtime: RuntimeOf, project: Project) -> Response:
    await runtime.canceller.delete(project, response_id)
    return reply({"id": response_id, "object": "response", "deleted": True})
