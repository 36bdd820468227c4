"""`/v1/conversations`: items that responses share."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.api.body import read_body_as
from app.api.dependencies import Project, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import body_of, error_answers
from app.api.errors import reply
from app.api.queries import NO_QUERY, Including, ItemsQuery
from app.protocol.requests.bodies.conversation import CreateConversation, CreateItems, UpdateConversation

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])

_including = Depends(Including.read)


@router.post(
    "",
    summary="Create a conversation",
    responses={200: {"model": schemas.Conversation}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(CreateConversation, required=False)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def create_conversation(request: Request, runtime: RuntimeOf, project: Project) -> Response:
    sent = await read_body_as(CreateConversation, request, runtime.settings, may_be_empty=True)
    return reply(await runtime.conversations.create(project, sent))


@router.get(
    "/{conversation_id}",
    summary="Read a conversation",
    responses={200: {"model": schemas.Conversation}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def get_conversation(conversation_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.get(project, conversation_id))


@router.post(
    "/{conversation_id}",
    summary="Set a conversation's metadata",
    responses={200: {"model": schemas.Conversation}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(UpdateConversation)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def update_conversation(conversation_id: str, request: Request, runtime: RuntimeOf, project: Project) -> Response:
    sent = await read_body_as(UpdateConversation, request, runtime.settings)
    return reply(await runtime.conversations.update(project, conversation_id, sent))


@router.delete(
    "/{conversation_id}",
    summary="Delete a conversation and its items",
    responses={200: {"model": schemas.ConversationDeleted}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def delete_conversation(conversation_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.delete(project, conversation_id))


@router.post(
    "/{conversation_id}/items",
    summary="Add items",
    responses={200: {"model": schemas.ItemList}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(CreateItems), "parameters": Including.parameters()},
    response_model=None,
    dependencies=[_including],
)
async def create_items(conversation_id: str, request: Request, runtime: RuntimeOf, project: Project) -> Response:
    sent = await read_body_as(CreateItems, request, runtime.settings)
    return reply(await runtime.conversations.add_items(project, conversation_id, sent))


@router.get(
    "/{conversation_id}/items",
    summary="List items",
    responses={200: {"model": schemas.ItemList}, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": ItemsQuery.parameters()},
    response_model=None,
)
async def list_items(
    conversation_id: str, query: Annotated[ItemsQuery, Depends(ItemsQuery.read)], runtime: RuntimeOf, project: Project
) -> Response:
    return reply(await runtime.conversations.list_items(project, conversation_id, query.page))


@router.get(
    "/{conversation_id}/items/{item_id}",
    summary="Read an item",
    responses={200: {"model": schemas.Item}, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": Including.parameters()},
    response_model=None,
    dependencies=[_including],
)
async def get_item(conversation_id: str, item_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.get_item(project, conversation_id, item_id))


@router.delete(
    "/{conversation_id}/items/{item_id}",
    summary="Delete an item",
    responses={200: {"model": schemas.Conversation}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def delete_item(conversation_id: str, item_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.delete_item(project, conversation_id, item_id))
