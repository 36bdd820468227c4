"""What API processes count: requests by route and status, limits that refuse, and two processes side by side."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from app.access.administration import Administration
from app.local.ports import free_port
from app.protocol.limits import LimitKind
from app.store.database import Database
from config.settings import Settings
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.scrapes import Scrape, scrape
from tests.support.tenants import Tenant, as_caller

TOKEN = "0123456789abcdef"
HELLO = {"model": MODEL, "input": "Hello!", "background": True}


@pytest.fixture
def settings(services: Any, db: Database, tmp_path: Path) -> Settings:
    more: dict[str, Any] = {"metrics_port": free_port(), "metrics_token": TOKEN}
    return settings_for(services, tmp_path, auth="keys", **more)


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with serving(settings) as running:
        yield running


async def shown(settings: Settings) -> Scrape:
    assert settings.metrics_port is not None
    return await scrape(settings.metrics_port, TOKEN)


async def test_requests_count_by_route_and_status_and_no_id_is_a_label(
    settings: Settings, api: Api, mine: Tenant
) -> None:
    async with as_caller(api, mine) as calling:
        response_id = (await calling.client.post("/v1/responses", json=HELLO)).json()["id"]
        for path in (response_id, response_id, "resp_unknown"):
            await calling.client.get(f"/v1/responses/{path}")
        await calling.client.get("/nowhere/at/all")
        await calling.client.request("PROPFIND", "/v1/responses")
    await api.client.get("/v1/models")
    found = await shown(settings)

    def count(method: str, route: str, status: int) -> float:
        return found.value("longhaul_http_requests_total", method=method, route=route, status=str(status))

    assert count("POST", "/v1/responses", 200) == 1
    assert count("GET", "/v1/responses/{response_id}", 200) == 2
    assert count("GET", "/v1/responses/{response_id}", 404) == 1
    assert count("GET", "other", 404) == 1
    assert count("other", "other", 405) + count("other", "/v1/responses", 405) == 1
    assert found.value("longhaul_http_requests_total", status="401") == 1
    assert response_id not in str(found.families)
    assert found.value("longhaul_http_request_seconds_count", route="/v1/responses/{response_id}") == 3


async def test_each_429_of_a_limit_counts_by_its_limit_and_project_over_http_and_websockets(
    settings: Settings, api: Api, admin: Administration, mine: Tenant
) -> None:
    await admin.set_limits(mine.project, "*", {LimitKind.QUEUED_RESPONSES: 1})
    labels = {"limit": "queued_responses", "project": mine.project}
    async with as_caller(api, mine) as calling:
        assert (await calling.client.post("/v1/responses", json=HELLO)).status_code == 200
        assert (await calling.client.post("/v1/responses", json=HELLO)).status_code == 429
        assert (await shown(settings)).value("longhaul_refusals_total", **labels) == 1
        async with connect(f"{api.url.replace('http', 'ws')}/v1/responses", additional_headers=mine.headers) as socket:
            await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Hello!"}))
            assert json.loads(await socket.recv())["status"] == 429
    found = await shown(settings)
    assert found.value("longhaul_refusals_total", **labels) == 2
    assert found.value("longhaul_refusals_total") == 2
    assert found.value("longhaul_http_requests_total", method="WEBSOCKET", route="/v1/responses", status="101") == 1


async def test_a_response_that_is_cancelled_counts_as_ended_from_outside(
    settings: Settings, api: Api, mine: Tenant
) -> None:
    async with as_caller(api, mine) as calling:
        response_id = (await calling.client.post("/v1/responses", json=HELLO)).json()["id"]
        await calling.client.post(f"/v1/responses/{response_id}/cancel")
        await calling.client.post(f"/v1/responses/{response_id}/cancel")
    assert (await shown(settings)).value("longhaul_outside_endings_total", status="cancelled") == 1
