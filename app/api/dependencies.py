"""What routes get from FastAPI: the parts of this process, the caller and its project, checked headers.

Every dependency is async: FastAPI runs the others in threads, which costs a request more than all its checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, TypedDict, cast

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from app.access.caller import Caller, ip_address_or_none
from app.access.changes import Changes, Operator
from app.access.charges import Charges
from app.access.directory import Directory
from app.access.trace_context import NO_TRACE, trace_context
from app.api.errors import REQUEST_ID
from app.api.holdings import ProcessBounds, holdings_of
from app.api.middleware import CALLER
from app.api.readiness import RecentReadiness
from app.api.shutdown import Shutdown
from app.batches.service import BatchService
from app.files.service import FileService
from app.metrics.instruments import ApiMetrics
from app.protocol.errors import InvalidRequest
from app.responses.conversations import ConversationService
from app.responses.models.catalog import PermittedCatalogs
from app.responses.models.registered import RegisteredModels
from app.responses.read.canceller import ResponseCanceller
from app.responses.read.reader import ResponseReader
from app.responses.service import ResponseService
from app.store.database import Database
from app.store.responses.lookup import Hold
from app.store.rows import Origin
from app.streaming.pubsub import PubSub
from app.webhooks.feed import EventFeed
from app.webhooks.service import WebhookService
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of one API process; `app.main` builds them."""

    settings: Settings
    db: Database
    pubsub: PubSub
    responses: ResponseService
    reader: ResponseReader
    canceller: ResponseCanceller
    conversations: ConversationService
    batches: BatchService
    files: FileService
    webhooks: WebhookService
    feed: EventFeed
    charges: Charges
    shutdown: Shutdown
    catalogs: PermittedCatalogs
    registered: RegisteredModels
    readiness: RecentReadiness
    started_at: int
    """Epoch seconds."""
    metrics: ApiMetrics


class State(TypedDict):
    """The lifespan's state: Starlette passes it to every request."""

    runtime: Runtime
    bounds: ProcessBounds
    directory: Directory


async def runtime_of(request: Request) -> Runtime:
    return cast(Runtime, request.state.runtime)


async def current_caller(request: HTTPConnection) -> Caller:
    """Returns the caller that `AuthenticationMiddleware` let in."""
    caller: Caller = request.scope["state"][CALLER]
    return caller


async def current_project(request: HTTPConnection) -> str:
    """Returns the project whose responses the request sees."""
    return (await current_caller(request)).own_project


async def origin_of(request: HTTPConnection) -> Origin:
    """Returns what the row of a response keeps of the request that makes it."""
    scope = request.scope
    sent: dict[bytes, list[str]] = {_PARENT: [], _STATE: []}
    for name, value in scope["headers"]:
        if name in sent:
            sent[name].append(value.decode("latin-1"))
    trace = trace_context(sent[_PARENT], sent[_STATE]) if sent[_PARENT] else NO_TRACE
    return Origin((await current_caller(request)).key_id, scope[REQUEST_ID], trace.parent, trace.state)


async def changes_of(request: Request) -> Changes:
    """Returns what makes changes in the name of the caller."""
    runtime, caller = await runtime_of(request), await current_caller(request)
    address = ip_address_or_none(request.client.host if request.client else None)
    return Changes(runtime.db, runtime.pubsub, Operator(caller.key_id, address, request.scope[REQUEST_ID]))


async def body_bytes(request: Request) -> int:
    """Returns the size of the body, which a parameter before this one has read."""
    size: int = request.state.body_bytes
    return size


async def hold_of(request: Request) -> Hold:
    """Returns what waits for room for a large answer to the request."""
    return holdings_of(request.scope).wait_for_answer


_PARENT, _STATE = b"traceparent", b"tracestate"
IDEMPOTENCY_KEY = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def idempotency_key(request: Request) -> str | None:
    """Returns the header's value, or None without the header. Raises InvalidRequest."""
    sent = request.headers.getlist(IDEMPOTENCY_KEY)
    if not sent:
        return None
    if len(sent) > 1 or not _KEY.fullmatch(sent[0]):
        message = f"Invalid '{IDEMPOTENCY_KEY}': expected 1 to 255 printable ASCII characters without spaces."
        raise InvalidRequest(message, IDEMPOTENCY_KEY, "invalid_value")
    return sent[0]


RuntimeOf = Annotated[Runtime, Depends(runtime_of)]
CallerOf = Annotated[Caller, Depends(current_caller)]
Project = Annotated[str, Depends(current_project)]
ChangesOf = Annotated[Changes, Depends(changes_of)]
BodyBytes = Annotated[int, Depends(body_bytes)]
HoldOf = Annotated[Hold, Depends(hold_of)]
