"""The layer in front of the routes: who is let in, and what happens when a key ends. Without services."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.access.caller import ANYBODY, OPERATOR_SCOPES, PROJECT_SCOPES, STRANGER
from app.access.caller import Scope as KeyScope
from app.access.known_key import REVOKED, KnownKey
from app.access.secret import new_secret
from app.aio import run_until
from app.api.authentication import CALLER, DIRECTORY, OPEN_PATHS, SCOPES, AuthenticationMiddleware
from app.api.holdings import BOUNDS, ProcessBounds
from app.api.routes import ROUTERS
from app.main import create_app
from app.store.database import StoreUnavailable
from app.store.tenants.api_keys import KeyRow
from config.settings import Settings, load_settings
from tests.support.api import CATALOG
from tests.support.cycles import no_collector
from tests.support.waiting import until

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SECRET = new_secret()


def row_of(scopes: frozenset[KeyScope] = PROJECT_SCOPES, project: str | None = "proj_a", left: float = 1000) -> KeyRow:
    names = tuple(scope.value for scope in scopes)
    return KeyRow("key_1", project, "mine", b"", "sk-lh-...", names, None, None, NOW, NOW, None, None, left, False)


class OneKey:
    """A directory that knows one key."""

    def __init__(self, row: KeyRow | None) -> None:
        self.known = None if row is None else KnownKey(row)

    async def key(self, secret: str) -> KnownKey | None:
        return self.known if secret == SECRET else None

    def count_refusal(self, secret: str | None, address: str | None, status: int) -> None:
        pass


class Away:
    async def key(self, secret: str) -> KnownKey | None:
        raise StoreUnavailable


class Exchange:
    """One request through the middleware to an app of the test."""

    def __init__(
        self, app: Any = None, row: KeyRow | None = None, directory: Any = None, middleware: Any = None, **scope: Any
    ) -> None:
        self.directory = directory or OneKey(row or row_of())
        headers = [(b"authorization", f"Bearer {SECRET}".encode())]
        state: dict[str, Any] = {DIRECTORY: self.directory, BOUNDS: ProcessBounds.of(Settings())}
        given = {"type": "http", "method": "GET", "path": "/v1/responses/resp_1", "headers": headers, "state": state}
        self.scope: Scope = {**given, **scope}
        self.sent: list[Message] = []
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._middleware = middleware or AuthenticationMiddleware(app or self._answer, "keys")

    async def run(self) -> Exchange:
        async def send(message: Message) -> None:
            self.sent.append(message)

        await self._middleware(self.scope, self.incoming.get, send)
        return self

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.sent[1]["body"])["error"]
        return error


def authorization(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", value.encode("latin-1")) for value in values]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([], "No API key was sent"),
        (["Bearer"], "holds no API key"),
        ([SECRET], "holds no API key"),
        ([f"Basic {SECRET}"], "holds no API key"),
        ([f"Bearer {SECRET}", f"Bearer {SECRET}"], "comes twice"),
        ([f"Bearer {SECRET}x"], "does not exist here"),
        (["Bearer \xff\xfe"], "does not exist here"),
        ([f"Bearer {new_secret()}"], "does not exist here"),
    ],
)
async def test_a_request_without_a_key_that_works_is_a_401(sent: list[str], words: str) -> None:
    exchange = await Exchange(headers=authorization(*sent)).run()
    assert exchange.status == 401
    assert words in exchange.error["message"]
    assert (exchange.error["type"], exchange.error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert (b"www-authenticate", b"Bearer") in exchange.sent[0]["headers"]
    assert SECRET not in str(exchange.sent)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([(b"x-api-key", SECRET)], None),
        ([(b"x-api-key", f" {SECRET} ")], None),
        ([(b"x-api-key", "nonsense"), (b"authorization", f"Bearer {SECRET}")], None),
        ([(b"x-api-key", SECRET), (b"authorization", "Bearer nonsense")], "does not exist here"),
        ([(b"x-api-key", SECRET), (b"x-api-key", SECRET)], "'x-api-key' comes twice"),
        ([(b"x-api-key", "")], "No API key was sent"),
    ],
)
async def test_anthropics_clients_send_a_key_in_a_header_of_its_own(sent: Any, words: str | None) -> None:
    """Beside `Authorization`, which counts."""
    exchange = await Exchange(headers=[(name, value.encode()) for name, value in sent]).run()
    assert exchange.status == (204 if words is None else 401)
    assert words is None or words in exchange.error["message"]


async def test_a_refusal_has_the_form_of_the_api_that_the_caller_speaks() -> None:
    for more in ({"path": "/v1/messages"}, {"headers": [(b"anthropic-version", b"2023-06-01")]}):
        exchange = await Exchange(**{"headers": [], **more}).run()
        assert (exchange.status, exchange.error["type"]) == (401, "authentication_error")


async def test_a_websocket_without_a_key_or_with_one_that_only_reads_is_refused_before_it_is_accepted() -> None:
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    asked = {"type": "websocket", "path": "/v1/responses", "extensions": extensions}
    for status, more in ((401, {"headers": []}), (403, {"row": row_of(frozenset({KeyScope.READ}))})):
        exchange = await Exchange(**asked, **more).run()
        kinds = [message["type"].removeprefix("websocket.http.response.") for message in exchange.sent]
        assert (kinds, exchange.status) == (["start", "body"], status)


async def test_while_postgres_is_away_an_unknown_key_is_a_503() -> None:
    exchange = await Exchange(directory=Away()).run()
    assert (exchange.status, exchange.error["code"]) == (503, "service_unavailable")


async def test_another_project_s_name_beside_a_key_is_refused() -> None:
    own, other = (b"openai-project", b"proj_a"), (b"openai-project", b"proj_b")
    assert (await Exchange(headers=[*authorization(f"Bearer {SECRET}"), own]).run()).status == 204
    exchange = await Exchange(headers=[*authorization(f"Bearer {SECRET}"), other]).run()
    assert (exchange.status, exchange.error["code"]) == (401, "mismatched_project")


async def test_life_needs_no_key_and_readiness_tells_strangers_less() -> None:
    for path in ("/health/live", "/health/ready"):
        exchange = await Exchange(path=path, headers=[], directory=Away()).run()
        assert exchange.status == 204 and exchange.scope["state"][CALLER] is STRANGER
    known = await Exchange(path="/health/ready").run()
    assert known.scope["state"][CALLER].project == "proj_a"
    assert (await Exchange(path="/health/ready", headers=authorization("Bearer nonsense")).run()).status == 401


@pytest.mark.parametrize("path", ["/docs", "/docs/static/x.css", "/openapi.json", "/", "/none", "/health/none"])
async def test_everything_else_needs_a_key(path: str) -> None:
    assert (await Exchange(path=path, headers=[]).run()).status == 401
    assert (await Exchange(path=path).run()).status == 204


def test_every_route_has_its_scope() -> None:
    routes = [route.path for router in ROUTERS for route in router.routes]  # type: ignore[attr-defined]
    named = {path.split("/")[2] for path in routes if path.startswith("/v1/")}
    assert named <= set(SCOPES)
    assert {path for path in routes if not path.startswith("/v1/")} == {"/", "/health/live", "/health/ready"}


def test_the_openapi_document_says_which_routes_may_refuse_a_key(tmp_path: Path) -> None:
    urls = {"DATABASE_URL": "postgresql://nowhere/x", "REDIS_URL": "redis://nowhere"}
    document = create_app(load_settings(**urls, home=tmp_path), CATALOG).openapi()
    without = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if not {"401", "403"} <= operation["responses"].keys()
    }
    assert without == OPEN_PATHS


READ, WRITE = {"method": "GET"}, {"method": "POST"}
OPERATOR = {"project": None, "scopes": OPERATOR_SCOPES}


@pytest.mark.parametrize(
    ("key", "path", "request_", "status"),
    [
        ({"scopes": frozenset({KeyScope.RESPONSES})}, "/v1/responses", WRITE, 204),
        ({"scopes": frozenset({KeyScope.RESPONSES})}, "/v1/conversations/conv_1/items", WRITE, 204),
        ({"scopes": frozenset({KeyScope.RESPONSES})}, "/v1/chat/completions", WRITE, 204),
        ({"scopes": PROJECT_SCOPES - {KeyScope.RESPONSES}}, "/v1/chat/completions", WRITE, 403),
        ({"scopes": frozenset({KeyScope.RESPONSES})}, "/v1/files", READ, 403),
        ({"scopes": frozenset({KeyScope.FILES})}, "/v1/responses/resp_1", READ, 403),
        ({"scopes": frozenset({KeyScope.FILES})}, "/v1/files", WRITE, 204),
        ({"scopes": frozenset({KeyScope.BATCHES})}, "/v1/batches", WRITE, 204),
        ({"scopes": frozenset({KeyScope.READ})}, "/v1/responses/resp_1", READ, 204),
        ({"scopes": frozenset({KeyScope.READ})}, "/v1/responses/resp_1", {"method": "HEAD"}, 204),
        ({"scopes": frozenset({KeyScope.READ})}, "/v1/responses/resp_1/cancel", WRITE, 403),
        ({"scopes": frozenset({KeyScope.READ})}, "/v1/responses/resp_1", {"method": "DELETE"}, 403),
        ({"scopes": frozenset({KeyScope.READ})}, "/v1/responses/input_tokens", WRITE, 403),
        ({"scopes": frozenset({KeyScope.READ})}, "/v1/models", READ, 204),
        ({"scopes": PROJECT_SCOPES}, "/v1/organization/projects", READ, 403),
        ({"scopes": PROJECT_SCOPES}, "/v1/organization/projects", WRITE, 403),
        (OPERATOR, "/v1/organization/projects", WRITE, 204),
        (OPERATOR, "/v1/models", READ, 204),
        (OPERATOR, "/v1/responses/resp_1", READ, 403),
    ],
)
async def test_a_key_allows_what_its_scopes_say(
    key: dict[str, Any], path: str, request_: dict[str, str], status: int
) -> None:
    exchange = await Exchange(row=row_of(**key), path=path, **request_).run()
    assert exchange.status == status
    if status == 403:
        assert exchange.error["code"] == "insufficient_permissions"
        expected = "belongs to no project" if key is OPERATOR else "needs the scope"
        assert expected in exchange.error["message"]


@pytest.mark.parametrize("scopes", [PROJECT_SCOPES, OPERATOR_SCOPES])
@pytest.mark.parametrize("path", ["/v1/", "/v1/unlisted", "/v1/unlisted/x", "/v1/Responses", "/v1//responses"])
async def test_no_key_opens_what_no_scope_is_named_for(scopes: frozenset[KeyScope], path: str) -> None:
    exchange = await Exchange(row=row_of(scopes), path=path, method="POST").run()
    assert (exchange.status, exchange.error["code"]) == (404, "unknown_url")


async def test_without_keys_everybody_is_let_in_whatever_they_send() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"][CALLER])

    async def nothing(*_: Any) -> Any: ...

    middleware = AuthenticationMiddleware(app, "open")
    for headers in ([], authorization("Bearer unused"), [(b"openai-project", b"proj_x")]):
        await middleware(
            {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers}, nothing, nothing
        )
    assert seen == [ANYBODY] * 3


class TestTheEndOfAKey:
    """What a request has open ends with its key."""

    @staticmethod
    async def ended_during(app: Callable[..., Awaitable[None]], **scope: Any) -> Exchange:
        """Runs a request, and ends its key once the app waits for its client."""
        exchange = Exchange(app, method="POST", path="/v1/responses", **scope)
        running = asyncio.create_task(exchange.run())
        await exchange.incoming.put({"type": "http.request", "body": b"{}", "more_body": False})
        await until(lambda: not exchange.incoming.qsize(), what="an app that waits")
        exchange.directory.known.end(REVOKED)
        return await running

    async def test_an_answer_that_is_complete_stays_as_it_is(self) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await Exchange._answer(None, scope, receive, send)  # type: ignore[arg-type]
            assert (await receive())["type"] == "http.disconnect"

        assert len((await self.ended_during(app)).sent) == 2

    async def test_a_websocket_is_closed_with_the_reason(self) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "websocket.accept"})
            await receive()
            assert (await receive())["type"] == "websocket.disconnect"

        exchange = await self.ended_during(app, type="websocket")
        assert exchange.sent[-1] == {"type": "websocket.close", "code": 1008, "reason": REVOKED}

    async def test_a_client_that_left_before_gets_nothing(self) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert (await receive())["type"] == "http.disconnect"

        exchange = Exchange(app)
        await exchange.incoming.put({"type": "http.disconnect"})
        exchange.directory.known.end(REVOKED)
        exchange.directory.known.refusal = None  # It ended after the request was let in.
        assert (await exchange.run()).sent == []

    async def test_a_body_that_arrives_after_the_end_is_not_acted_on(self) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            exchange.directory.known.end(REVOKED)
            assert (await receive())["type"] == "http.disconnect"

        exchange = Exchange(app)
        await exchange.incoming.put({"type": "http.request", "body": b"{}", "more_body": False})
        await exchange.run()
        assert exchange.status == 401


async def test_a_project_that_begins_and_ends_much_at_once_lets_others_go_between() -> None:
    """Thousands that were let in or cut off within one turn of the loop kept a neighbour waiting for seconds."""
    begun, ended = list[str | None](), list[str | None]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        project = scope["state"][CALLER].project
        begun.append(project)
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        ended.append(project)

    middleware = AuthenticationMiddleware(app, "keys")
    rows = [row_of(project="proj_crowd") for _ in range(100)] + [row_of(project="proj_other")]
    exchanges = [Exchange(row=row, middleware=middleware) for row in rows]
    running = [asyncio.create_task(exchange.run()) for exchange in exchanges]
    for exchange in exchanges:
        exchange.incoming.put_nowait({"type": "http.request"})
    await until(lambda: len(begun) == len(exchanges))
    for exchange in exchanges:
        exchange.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.gather(*running)
    assert begun.index("proj_other") < 5 and ended.index("proj_other") < 5


class Held:
    """Something that a request holds."""


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await Exchange._answer(None, scope, receive, send)  # type: ignore[arg-type]


async def answers_before_its_client_leaves(scope: Scope, receive: Receive, send: Send) -> None:
    """As `ForegroundReply` does: the wait for the client is cancelled."""
    await receive()
    assert await run_until(Exchange._answer(None, scope, receive, send), _left(receive))  # type: ignore[arg-type]


async def waits(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    assert not await run_until(asyncio.sleep(1000), _left(receive))


async def _left(receive: Receive) -> None:
    assert (await receive())["type"] == "http.disconnect"


@pytest.mark.parametrize("app", [answers, answers_before_its_client_leaves, waits])
async def test_no_request_leaves_anything_for_the_garbage_collector(app: Any) -> None:
    held = Held()
    ended = weakref.ref(held)
    key = OneKey(row_of())
    assert key.known is not None
    exchange = Exchange(app, directory=key, method="POST", held=held)
    del held
    incoming = exchange.incoming
    await incoming.put({"type": "http.request", "body": b"{}", "more_body": False})
    with no_collector():
        running = asyncio.create_task(exchange.run())
        await until(lambda: not incoming.qsize(), what="an app that has its body")
        if app is waits:
            key.known.end(REVOKED)
        await running
        del running, exchange
        await asyncio.sleep(0)
        assert ended() is None
