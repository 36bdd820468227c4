"""`/v1/conversations`: items that responses share."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api.dependencies import BodyBytes, HoldOf, Project, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import error_answers
from app.api.errors import encoded_reply, reply
from app.api.queries import Including, ItemsQuery
from app.api.routes.route import Asked, Body, Route, Sent
from app.protocol.requests.bodies.conversation import CreateConversation, CreateItems, UpdateConversation

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=Route)

_Creation = Annotated[CreateConversation, Depends(Body(CreateConversation, may_be_empty=True).read)]
_including = Depends(Including.read)


@router.post("", summary="Create a conversation", response_model=schemas.Conversation, responses=error_answers(404))
async def create_conversation(sent: _Creation, size: BodyBytes, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.create(project, sent, size))


@router.get("/{conversation_id}", summary="Read a conversation", response_model=schemas.Conversation)
async def get_conversation(conversation_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.get(project, conversation_id))


@router.post("/{conversation_id}", summary="Set a conversation's metadata", response_model=schemas.Conversation)
async def update_conversation(
    conversation_id: str, sent: Sent[UpdateConversation], runtime: RuntimeOf, project: Project
) -> Response:
    return reply(await runtime.conversations.update(project, conversation_id, sent))


@router.delete(
    "/{conversation_id}", summary="Delete a conversation and its items", response_model=schemas.ConversationDeleted
)
async def delete_conversation(conversation_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.delete(project, conversation_id))


@router.post(
    "/{conversation_id}/items", summary="Add items", response_model=schemas.ItemList, dependencies=[_including]
)
async def create_items(
    conversation_id: str, sent: Sent[CreateItems], size: BodyBytes, runtime: RuntimeOf, project: Project
) -> Response:
    return encoded_reply(await runtime.conversations.add_items(project, conversation_id, sent, size))


@router.get("/{conversation_id}/items", summary="List items", response_model=schemas.ItemList)
async def list_items(
    conversation_id: str, query: Asked[ItemsQuery], runtime: RuntimeOf, project: Project, hold: HoldOf
) -> Response:
    return encoded_reply(await runtime.conversations.list_items(project, conversation_id, query.page, hold))


@router.get(
    "/{conversation_id}/items/{item_id}", summary="Read an item", response_model=schemas.Item, dependencies=[_including]
)
async def get_item(conversation_id: str, item_id: str, runtime: RuntimeOf, project: Project, hold: HoldOf) -> Response:
    return encoded_reply(await runtime.conversations.get_item(project, conversation_id, item_id, hold))


@router.delete("/{conversation_id}/items/{item_id}", summary="Delete an item", response_model=schemas.Conversation)
async def delete_item(conversation_id: str, item_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.conversations.delete_item(project, conversation_id, item_id))
