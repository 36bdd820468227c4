"""The layer in front of every route: who calls, and whether that caller may.

When a key ends, its open requests end too: the app is told that the client has left, so everything ends as it does
for a client that leaves, and the client is told why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Literal

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.caller import ANYBODY, PROJECT_SCOPES, STRANGER, Caller
from app.access.caller import Scope as KeyScope
from app.access.directory import Directory
from app.access.known_key import KnownKey
from app.aio import Turns, run_until
from app.api.errors import api_error_of, bound_error, refuse, unknown_url
from app.api.holdings import holdings_of
from app.api.middleware import CALLER, check_origin
from app.bounds import BoundReached
from app.heavy import PROJECT
from app.protocol.errors import Forbidden, NotFound, Unauthorized
from app.store.database import StoreUnavailable

DIRECTORY = "directory"
"""The key of the process' directory in the lifespan's state."""
_KEY = "api_key"
"""The key of the caller's `KnownKey` in the request's state."""

OPEN_PATHS = frozenset({"/health/live"})
"""Paths that ask nobody for a key."""
PATHS_FOR_STRANGERS = frozenset({"/health/ready"})
"""Paths that say less to a caller without a key."""

SCOPES = {
    "batches": KeyScope.BATCHES,
    "chat": KeyScope.RESPONSES,
    "conversations": KeyScope.RESPONSES,
    "events": KeyScope.RESPONSES,
    "files": KeyScope.FILES,
    "messages": KeyScope.RESPONSES,
    "models": None,
    "operator": KeyScope.OPERATOR,
    "organization": KeyScope.ADMIN,
    "responses": KeyScope.RESPONSES,
    "webhook_endpoints": KeyScope.RESPONSES,
    "webhook_event_types": None,
}
"""The scope that each `/v1/...` needs; None: any key will do. `read` will do as well to read what projects have.

What is not listed is not there, whatever routes the app has: no key opens it.
"""

_AUTHORIZATION, _API_KEY, _PROJECT = b"authorization", b"x-api-key", b"openai-project"
_CREDENTIALS = {_AUTHORIZATION: "Authorization", _API_KEY: "x-api-key", _PROJECT: "OpenAI-Project"}
_READS = frozenset({"GET", "HEAD"})
_HARMLESS = _READS | {"OPTIONS"}
_POLICY_VIOLATION = 1008

_MISSING = "No API key was sent. Send one in the header 'Authorization: Bearer sk-lh-...', or in 'x-api-key'."
_TWICE = "The header '{}' comes twice; send it once."
_NO_KEY = "The header 'Authorization' holds no API key; send 'Authorization: Bearer sk-lh-...'."
_UNKNOWN = "The API key does not exist here. Check that it was copied whole, and that it belongs to this server."
_MISMATCH = "The header 'OpenAI-Project' names another project than the API key's. Leave it out, or send that one's id."
_NO_PROJECT = "This API key belongs to no project. Use a key of the project in which this shall happen."


class AuthenticationMiddleware:
    """Lets a request in if its API key allows it; with `auth` `open`, every request.

    The request's state then has its `Caller`. Where no key is asked for, a web page of another origin changes nothing:
    browsers send its POST without asking anybody if it has no body, or one that is plain text.
    """

    def __init__(self, app: ASGIApp, auth: Literal["open", "keys"], origins: Collection[str] = ()) -> None:
        self._app = app
        self._asks = auth == "keys"
        self._origins = origins
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if not self._asks or scope["path"] in OPEN_PATHS:
            caller = STRANGER if self._asks else ANYBODY
            if not self._asks and scope["type"] == "http" and scope["method"] not in _HARMLESS:
                try:
                    check_origin(scope, self._origins)
                except Forbidden as foreign:
                    await refuse(foreign)(scope, receive, send)
                    return
            await self._pass_on(caller, scope, receive, send)
            return
        try:
            key = await _key_of(scope)
        except (Unauthorized, Forbidden, NotFound, StoreUnavailable) as raised:
            error = api_error_of(raised)
            assert error is not None
            if isinstance(raised, Unauthorized | Forbidden):
                _count_refusal(scope, raised.status)
            await refuse(error)(scope, receive, send)
            return
        if key is None:
            await self._pass_on(STRANGER, scope, receive, send)
            return
        try:
            holdings_of(scope).set_project(key.caller.project)
        except BoundReached as reached:
            last = {"connection": "close"} if scope["type"] == "http" else None
            await refuse(bound_error(reached), last)(scope, receive, send)
            return
        await self._turns.take(key.caller.project)
        PROJECT.set(key.caller.project)
        with key.in_use():
            scope["state"][CALLER] = key.caller
            scope["state"][_KEY] = key
            await _Admitted(self._app, key, scope, receive, send, self._turns).run()

    async def _pass_on(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[CALLER] = caller
        await self._app(scope, receive, send)


async def _key_of(scope: Scope) -> KnownKey | None:
    """Returns the request's key; None: it has none, and needs none.

    Raises Unauthorized, Forbidden, NotFound and StoreUnavailable.
    """
    secret, project = _credentials(scope)
    if secret is None:
        if scope["path"] in PATHS_FOR_STRANGERS:
            return None
        raise Unauthorized(_MISSING)
    directory: Directory = scope["state"][DIRECTORY]
    key = await directory.key(secret)
    if key is None:
        raise Unauthorized(_UNKNOWN)
    if key.refusal is not None:
        raise Unauthorized(key.refusal)
    if project is not None and project != key.caller.project:
        raise Unauthorized(_MISMATCH, "OpenAI-Project", "mismatched_project")
    _check_scopes(scope, key.caller)
    return key


def _credentials(scope: Scope) -> tuple[str | None, str | None]:
    """Returns the key and the project that the headers name. Raises Unauthorized.

    `Authorization` counts before `x-api-key`, in which Anthropic's clients send a key.
    """
    sent: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _CREDENTIALS:
            if name in sent and name != _PROJECT:
                raise Unauthorized(_TWICE.format(_CREDENTIALS[name]))
            sent[name] = value.decode("latin-1")
    project, plain = sent.get(_PROJECT), sent.get(_API_KEY, "").strip()
    if (bearer := sent.get(_AUTHORIZATION)) is None:
        return plain or None, project
    scheme, _, secret = bearer.partition(" ")
    if scheme.lower() != "bearer" or not (secret := secret.strip()):
        raise Unauthorized(_NO_KEY)
    return secret, project


def check_scopes_now(scope: Scope) -> None:
    """Raises Forbidden if a connection's key does not allow any longer what the connection is for."""
    key: KnownKey | None = scope["state"].get(_KEY)
    if key is not None:
        try:
            _check_scopes(scope, key.caller)
        except Forbidden as refused:
            _count_refusal(scope, refused.status)
            raise


def _count_refusal(scope: Scope, status: int) -> None:
    """Counts a refused request for the log. A proxy that uvicorn trusts says whose request it is."""
    try:
        secret, _ = _credentials(scope)
    except Unauthorized:
        secret = None
    directory: Directory = scope["state"][DIRECTORY]
    directory.count_refusal(secret, scope["client"][0] if scope.get("client") else None, status)


def _check_scopes(scope: Scope, caller: Caller) -> None:
    """Raises Forbidden if the caller's key does not allow what the request does, and NotFound if no key would."""
    path: str = scope["path"]
    resource = path.split("/", 3)[2] if path.startswith("/v1/") else None
    if resource is not None and resource not in SCOPES:
        raise unknown_url(scope.get("method", "GET"), path)
    needed = None if resource is None else SCOPES[resource]
    if needed is None or needed in caller.scopes:
        return
    may_read = needed in PROJECT_SCOPES and scope["type"] == "http" and scope["method"] in _READS
    if may_read and KeyScope.READ in caller.scopes:
        return
    if caller.project is None and needed in PROJECT_SCOPES:
        raise Forbidden(_NO_PROJECT, code="insufficient_permissions")
    names = f"'{needed.value}'" + (f" or '{KeyScope.READ.value}'" if may_read else "")
    message = f"The API key has insufficient permissions for this operation. It needs the scope {names}."
    raise Forbidden(message, code="insufficient_permissions")


class _Admitted:
    """One request of a key, which ends with the key.

    It ends in a turn, as it begins: thousands of streams may end together, or lose their client.
    """

    def __init__(self, app: ASGIApp, key: KnownKey, scope: Scope, receive: Receive, send: Send, turns: Turns) -> None:
        self._app = app
        self._key = key
        self._scope = scope
        self._is_http = scope["type"] == "http"
        self._receive = receive
        self._send = send
        self._turns = turns
        self._has_body = self._is_stream = False
        self._started = self._complete = self._cut = False

    async def run(self) -> None:
        try:
            await self._app(self._scope, self._receive_until_end, self._watch_send)
        except ClientDisconnect:
            if not self._cut:
                raise
        if self._cut and not self._complete:
            await self._end()

    async def _watch_send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            if message.get("more_body", False):
                self._is_stream = True
            elif self._is_stream:
                await self._turns.take(self._key.caller.project)  # A key that ends meanwhile cuts the stream off.
            self._complete = not message.get("more_body", False)
        elif kind in ("http.response.start", "websocket.accept"):
            self._started = True
        elif kind == "websocket.close":
            self._complete = True
        await self._send(message)

    async def _receive_until_end(self) -> Message:
        """Receives a message. Once the key has ended, it says that the client is gone."""
        if self._is_http and not self._has_body:
            # The body has a deadline of its own, so most requests need no task that waits for their key's end.
            message = await self._receive()
            self._has_body = not message.get("more_body", False)
        else:
            message = await _unless(self._receive, self._key.ended)
        has_left = message["type"] in ("http.disconnect", "websocket.disconnect")
        if has_left or self._key.ended.is_set():
            await self._turns.take(self._key.caller.project)
        if not self._key.ended.is_set():
            return message
        self._cut = not has_left
        return {"type": "http.disconnect"} if self._is_http else {"type": "websocket.disconnect", "code": 1005}

    async def _end(self) -> None:
        refusal = self._key.refusal or _UNKNOWN
        if not self._is_http and self._started:
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal})
        elif not self._started:
            await refuse(Unauthorized(refusal))(self._scope, self._receive, self._send)
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


_KEY_ENDED: Message = {"type": "key.ended"}


async def _unless(receive: Receive, ended: asyncio.Event) -> Message:
    """Returns the next message, or _KEY_ENDED if the key ends first."""
    message = _KEY_ENDED

    async def receive_one() -> None:
        nonlocal message
        message = await receive()

    await run_until(receive_one(), ended.wait())
    return message
