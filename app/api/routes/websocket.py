"""`WS /v1/responses`: several responses on one connection."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from app.api.dependencies import current_caller, origin_of
from app.api.errors import bound_error, refuse
from app.api.holdings import ProcessBounds
from app.api.middleware import check_origin
from app.api.queries import Query
from app.api.websocket.session import Session
from app.bounds import BoundReached
from app.protocol.errors import ApiError, Unavailable

router = APIRouter(prefix="/v1/responses")


@router.websocket("")
async def connect(websocket: WebSocket) -> None:
    """A handshake that is refused is answered as any HTTP request is."""
    caller = await current_caller(websocket)
    bounds: ProcessBounds = websocket.state.bounds
    try:
        check_origin(websocket.scope, websocket.state.runtime.settings.cors_origins)
        if websocket.state.runtime.shutdown.begun.is_set():
            raise Unavailable("The server is stopping; connect again.")
        await Query.read(websocket)
        place = bounds.websockets.take(caller.own_project)
    except ApiError as error:
        await websocket.send_denial_response(refuse(error))
    except BoundReached as reached:
        await websocket.send_denial_response(refuse(bound_error(reached)))
    else:
        with place:
            await websocket.accept()
            await Session(websocket, websocket.state.runtime, caller, await origin_of(websocket)).run()
