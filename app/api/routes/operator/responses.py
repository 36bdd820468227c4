"""`/v1/operator/responses`: what operators see of responses of all projects. It is no prompt and no output."""

from __future__ import annotations

from app.api.dependencies import RuntimeOf
from app.api.docs.routes import error_answers
from app.api.queries import StartingAfterQuery
from app.api.response_lists.objects import ResponsesPage
from app.api.response_lists.operator_objects import EventNames, OperatorResponse, ResponseStory
from app.api.response_lists.queries import OperatorResponsesQuery, filter_of
from app.api.routes.operator.common import ServiceOf, operator_router
from app.api.routes.operator.objects import Why
from app.api.routes.route import Asked
from app.operations.history import find_history, read_events
from app.operations.whom import resolved
from app.store.operations import listing
from app.store.tenants import projects

router = operator_router("/responses")
explanations = operator_router("/responses/{response_id}")


@router.get("", summary="List responses of all projects", responses=error_answers(404, 414))
async def list_responses(query: Asked[OperatorResponsesQuery], runtime: RuntimeOf) -> ResponsesPage[OperatorResponse]:
    """A page may have fewer entries than `limit`, or none, while `has_more` is true: the next one goes on behind
    `last_id`."""
    found = await listing.find_page(runtime.db, await resolved(runtime.db, filter_of(query)), query.page)
    names = await projects.names(runtime.db, {entry.project for entry in found.entries})
    return ResponsesPage.of_found(found, lambda row: OperatorResponse.of(row, project_name=names.get(row.project)))


@router.get("/{response_id}", summary="Read what became of a response")
async def get_story(response_id: str, runtime: RuntimeOf) -> ResponseStory:
    return ResponseStory.of_history(await find_history(runtime.db, response_id))


@router.get("/{response_id}/events", summary="Read the types of a response's events")
async def list_events(response_id: str, query: Asked[StartingAfterQuery], runtime: RuntimeOf) -> EventNames:
    """Those after number `starting_after`, a page at a time; nothing of what they say."""
    status, events, has_more = await read_events(runtime.db, response_id, query.last_seen)
    return EventNames(status=status, data=events, has_more=has_more)


@explanations.get("/why", summary="Say why a response does not run, where it runs, or how it ended")
async def why(response_id: str, service: ServiceOf) -> Why:
    return Why.explained(*await service.why(response_id))
