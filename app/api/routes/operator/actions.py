"""`/v1/operator/actions`: what is done to all responses that match a filter."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from app.api.admin_objects import List
from app.api.dependencies import ChangesOf
from app.api.docs.routes import error_answers
from app.api.queries import BothWaysQuery, NewestFirstQuery
from app.api.response_lists.operator_objects import Action, ActionCount
from app.api.response_lists.queries import filter_of
from app.api.routes.operator.common import operator_router
from app.api.routes.route import Asked, Sent
from app.operations.bulk import BulkActions
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.operator import StartAction
from app.store.operations.actions import ActionKind

router = operator_router("/actions")


async def bulk_of(changes: ChangesOf) -> BulkActions:
    return BulkActions(changes)


BulkOf = Annotated[BulkActions, Depends(bulk_of)]


class ActionsQuery(NewestFirstQuery, BothWaysQuery):
    pass


@router.post("", summary="Cancel or retry all responses that match a filter", responses=error_answers(404))
async def start_action(body: Sent[StartAction], bulk: BulkOf) -> Action | ActionCount:
    """The action is accepted at once, and carried out by maintenance; `GET` shows how far it has come.

    It acts on responses that exist now, not on what comes later. With `dry_run` the answer is how many match.

    A cancel whose filter holds for whole batches is about their lines that are no responses yet, too: with all
    statuses it ends these batches, with `queued` alone what runs of them goes on.
    """
    kind, only = ActionKind(body.kind), filter_of(body.filter)
    if body.dry_run:
        return ActionCount.of(kind, await bulk.count(kind, only))
    if body.reason is None:
        raise InvalidRequest("Missing required parameter: 'reason'.", "reason", "missing_required_parameter")
    return Action.of(await bulk.start(kind, only, body.reason, on_all=body.all))


@router.get("", summary="List actions, the newest first")
async def list_actions(query: Asked[ActionsQuery], bulk: BulkOf) -> List[Action]:
    return List.of(await bulk.find_page(query.page), Action.of)


@router.get("/{action_id}", summary="Read how far an action has come")
async def get_action(action_id: str, bulk: BulkOf) -> Action:
    return Action.of(await bulk.find(action_id))


@router.post("/{action_id}/cancel", summary="Stop an action")
async def cancel_action(action_id: str, bulk: BulkOf) -> Action:
    """What it has done stays: a response that was cancelled can be retried, one that was retried can be cancelled."""
    return Action.of(await bulk.cancel(action_id))
