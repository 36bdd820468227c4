"""What costs is charged first: every request, whatever becomes of it, and every read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.access.changes import AdministrationError
from app.api.routes import ROUTERS
from app.protocol.limits import LimitKind
from app.store.database import Database
from app.store.tenants import limits
from tests.integration.api.common import answer_to, change, creation, socket_of
from tests.support.api import MODEL, Api
from tests.support.player import Player
from tests.support.tenants import Tenant

REQUESTS, READS = "requests_per_minute", "reads_per_minute"
REFUSED: list[tuple[int, str, dict[str, Any]]] = [
    (400, "/v1/responses", {"content": b"{"}),
    (400, "/v1/responses", {"json": {"model": MODEL, "input": "Hi", "temperature": 9}}),
    (404, "/v1/responses", {"json": {"model": "none", "input": "Hi"}}),
    (404, "/v1/responses", {"json": {"model": MODEL, "input": "Hi", "conversation": "conv_none"}}),
    (400, "/v1/responses", {"json": {"model": MODEL, "input": "Hi", "previous_response_id": "resp_none"}}),
    (400, "/v1/responses?nonsense=1", {"json": {"model": MODEL, "input": "Hi"}}),
    (404, "/v1/responses/resp_none/cancel", {}),
    (404, "/v1/conversations/conv_none", {"json": {"metadata": {}}}),
    (404, "/v1/conversations/conv_none/items", {"json": {"items": [{"role": "user", "content": "Hi"}]}}),
]
"""Requests that end in an error, each with its status."""
SETTINGS = {"auth": "keys"}


Limit = Callable[..., Awaitable[None]]


@pytest.fixture
def limit(db: Database, admin: Administration, mine: Tenant, api: Api) -> Limit:
    """Sets limits that the API knows at once, and that nothing refills during the test."""

    async def set_limits(model: str = "*", **values: int | None) -> None:
        await admin.set_limits(mine.project, model, {LimitKind(kind): value for kind, value in values.items()})
        await change(db, "UPDATE limits SET as_of = now() + interval '1 hour'")
        await api.server.lifespan.state["directory"].look()

    return set_limits


async def taken(db: Database, mine: Tenant) -> dict[str, float]:
    return {state.kind.value: state.used for state in await limits.states(db, mine.project) if state.model == "*"}


async def test_a_refused_request_costs_as_much_as_any_and_without_room_nothing_is_looked_at(
    db: Database, limit: Limit, mine: Tenant, calling: Api
) -> None:
    await limit(requests_per_minute=len(REFUSED))
    headers = {"content-type": "application/json"}
    for status, path, sent in REFUSED:
        answer = await calling.client.post(path, **{"headers": headers, **sent})
        assert answer.status_code == status, (path, answer.text)
    assert await taken(db, mine) == {REQUESTS: len(REFUSED)}
    for _, path, sent in REFUSED:
        refused = await calling.client.post(path, **sent)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-limit-requests"] == str(len(REFUSED))
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert f"Limit '{REQUESTS}' of project '{mine.project}' for all models" in refused.json()["error"]["message"]


async def test_every_route_is_charged(db: Database, limit: Limit, mine: Tenant, calling: Api) -> None:
    """Whatever the id, whatever the body: without room there is no other answer."""
    routes = {
        (method, route.path.replace("{model:path}", MODEL))  # type: ignore[attr-defined]
        for router in ROUTERS
        for route in router.routes
        for method in getattr(route, "methods", None) or ()
    }
    operators = ("/v1/organization/", "/v1/operator/", "/health/")
    charged = sorted(
        route for route in routes if not route[1].startswith(operators) and route[0] != "HEAD" and route[1] != "/"
    )
    assert {("GET", "/v1/models"), ("DELETE", "/v1/conversations/{conversation_id}")} < set(charged)
    await limit(requests_per_minute=1, reads_per_minute=1)
    assert (await calling.client.post("/v1/responses", json={})).status_code == 400
    assert (await calling.client.get("/v1/responses/resp_none")).status_code == 404
    for method, path in charged:
        answer = await calling.client.request(method, path)
        assert answer.status_code == 429, (method, path)
        assert (READS if method == "GET" else REQUESTS) in answer.json()["error"]["message"]
    assert await taken(db, mine) == {REQUESTS: 1, READS: 1}


async def test_limits_of_a_model_repeated_keys_and_messages_of_websockets_are_charged(
    limit: Limit, mine: Tenant, calling: Api
) -> None:
    await limit(MODEL, requests_per_minute=1)
    assert (await calling.post(conversation="conv_none")).status_code == 404
    refused = await calling.post(conversation="conv_none")
    assert refused.status_code == 429 and f"the model '{MODEL}'" in refused.json()["error"]["message"]
    assert (await calling.post(model="org/other-model", background=True)).status_code == 200

    await limit(MODEL, requests_per_minute=None)
    await limit(requests_per_minute=2, unfinished_responses=2)
    sent: dict[str, Any] = {"json": {"model": MODEL, "input": "Hi", "background": True}}
    sent["headers"] = {"idempotency-key": "one"}
    answers = [await calling.client.post("/v1/responses", **sent) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json()["id"] == answers[1].json()["id"]

    await limit(requests_per_minute=None)
    await limit(requests_per_minute=1)
    async with socket_of(calling, mine.headers) as socket:
        assert [(await answer_to(socket, creation(nonsense=1)))["status"] for _ in range(2)] == [400, 429]


async def test_a_project_with_a_limit_on_reads_alone_reserves_nothing_and_a_stream_is_one_read(
    db: Database, limit: Limit, mine: Tenant, calling: Api, player: Player, admin: Administration
) -> None:
    await limit(reads_per_minute=1)
    response_id = await calling.background(stream=True)
    [row] = await db.execute(text("SELECT reserved_at FROM responses"))
    assert row.reserved_at is None
    await player.answer("Hello, world!", response_id=response_id)
    async with calling.resuming(response_id) as reader:
        assert reader.status == 200 and b"[DONE]" in await reader.rest()
    assert await taken(db, mine) == {READS: 1}
    async with calling.resuming(response_id) as reader:
        assert reader.status == 429
    await limit(reads_per_minute=None)
    await limit(requests_per_minute=1, reads_per_minute=2)
    answers = [await calling.get(response_id) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert (await calling.post(background=True)).status_code == 200, "reads take nothing of requests"
    with pytest.raises(AdministrationError, match="a limit on all models together"):
        await admin.set_limits(mine.project, MODEL, {LimitKind.READS_PER_MINUTE: 1})
