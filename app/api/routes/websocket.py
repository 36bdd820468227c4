"""`WS /v1/responses`: several responses on one connection."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter, WebSocket

from app.api.dependencies import current_project, only_query
from app.api.errors import refuse
from app.api.websocket.session import Session
from app.protocol.errors import ApiError, Forbidden

router = APIRouter(prefix="/v1/responses")

_no_query = only_query()


@router.websocket("")
async def connect(websocket: WebSocket) -> None:
    """A handshake that is refused is answered as any HTTP request is."""
    try:
        _check_origin(websocket)
        await _no_query(websocket)
    except ApiError as error:
        await websocket.send_denial_response(refuse(error))
        return
    await websocket.accept()
    await Session(websocket, websocket.state.runtime, await current_project()).run()


def _check_origin(websocket: WebSocket) -> None:
    """Raises Forbidden for a page of another site: browsers ask nobody before they open a WebSocket."""
    origin = websocket.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != websocket.headers.get("host", "").lower():
        raise Forbidden("WebSockets from web pages of another origin are not accepted.", code="origin_not_allowed")
