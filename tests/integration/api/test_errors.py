"""Errors of every route: one form, one line, and the field as the caller wrote it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.docs import schemas
from app.store.database import Database
from tests.support.api import MODEL, Api, serving, settings_for

LIMIT = 4096
JSON = {"content-type": "application/json"}
PLAIN = {"content-type": "text/plain"}

BODIES = [
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/responses/compact",
    "/v1/conversations",
    "/v1/conversations/conv_1",
    "/v1/conversations/conv_1/items",
]
"""POST routes with a body."""

ROUTES = [
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/conversations/conv_1"),
    ("DELETE", "/v1/conversations/conv_1"),
    ("GET", "/v1/conversations/conv_1/items"),
    ("GET", "/v1/conversations/conv_1/items/msg_1"),
    ("DELETE", "/v1/conversations/conv_1/items/msg_1"),
]


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(services, tmp_path, max_body_bytes=LIMIT)) as running:
        yield running


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error = schemas.ErrorBody.model_validate(answer.json()).error
    assert "\n" not in error.message
    return error.model_dump()


async def test_a_body_that_cannot_be_read_is_refused_on_every_route(api: Api) -> None:
    """integration/api/test_refusals.py has more of such bodies, on one route."""
    large = b" " * (LIMIT + 1)
    refused = [(b"{", JSON, 400, "invalid_json"), (b"{}", PLAIN, 415, "unsupported_media_type")]
    refused.append((large, JSON, 413, "request_too_large"))
    for path in BODIES:
        for body, headers, status, code in refused:
            answer = await api.client.post(path, content=body, headers=headers)
            assert (answer.status_code, error_of(answer)["code"]) == (status, code), path


async def test_an_unknown_field_is_named_on_every_route(api: Api) -> None:
    for path in BODIES:
        answer = await api.client.post(path, json={"zzz": 1})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "zzz"), path


async def test_an_unknown_query_parameter_is_named_on_every_route(api: Api) -> None:
    for method, path in (*ROUTES, *(("POST", path) for path in BODIES)):
        body = {} if path in BODIES else None
        answer = await api.client.request(method, path, params={"verbose": "1"}, json=body)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "verbose"), (method, path)


async def test_a_wrong_method_is_a_405_on_every_route(api: Api) -> None:
    for path in BODIES:
        answer = await api.client.put(path, json={})
        assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_allowed"), path
        assert "POST" in answer.headers["allow"]


async def test_an_unknown_resource_is_a_404_on_every_route(api: Api) -> None:
    for method, path in ROUTES:
        answer = await api.client.request(method, path)
        assert (answer.status_code, error_of(answer)["type"]) == (404, "invalid_request_error"), (method, path)


async def test_without_postgres_every_route_is_a_503(api: Api, services: Any) -> None:
    item = {"role": "user", "content": "x"}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"model": MODEL, "input": "x"},
        "/v1/responses/input_tokens": {"model": MODEL, "input": "x"},
        "/v1/responses/compact": {"model": MODEL, "input": "x"},
        "/v1/conversations": {"items": [item]},
        "/v1/conversations/conv_1": {"metadata": {}},
        "/v1/conversations/conv_1/items": {"items": [item]},
    }
    await asyncio.to_thread(services.postgres.stop)
    answers = [await api.client.post(path, json=body) for path, body in bodies.items()]
    answers += [await api.client.request(method, path) for method, path in ROUTES]
    for answer in answers:
        assert (answer.status_code, error_of(answer)["code"]) == (503, "service_unavailable")
        assert "retry-after" in answer.headers


PROJECT = "/v1/organization/projects/default"
ODD_VALUES = (
    "%00",
    "a%00b",
    "%FF",
    "%ED%A0%80",
    "%F0%9F%98%80",
    "a" * 5000,
    "%0A",
    "'",
    "%27%3B--",
    "-1",
    "9" * 400,
    "",
)


class TestParameters:
    """Every path parameter and query parameter of the OpenAPI document, with values that no caller should send."""

    async def test_no_value_of_a_parameter_is_a_server_error(self, api: Api) -> None:
        items = [{"role": "user", "content": "a", "id": "msg_mine"}]
        conversation = (await api.client.post("/v1/conversations", json={"items": items})).json()["id"]
        account = (await api.client.post(f"{PROJECT}/service_accounts", json={"name": "a"})).json()
        real = {
            "conversation_id": conversation,
            "item_id": "msg_mine",
            "response_id": await api.background(),
            "project_id": "default",
            "service_account_id": account["id"],
            "key_id": account["api_key"]["id"],
            "rate_limit_id": "rl-*",
            "model": "x",
        }
        paths: dict[str, Any] = (await api.client.get("/openapi.json")).json()["paths"]
        tried = 0
        for template, operations in paths.items():
            names = re.findall(r"{(\w+)}", template)
            plain = template.format(**real)
            for method in sorted(operations.keys() - {"delete"}):
                urls = [template.format(**{**real, name: odd}) for name in names for odd in ODD_VALUES]
                query = [each["name"] for each in operations[method].get("parameters", ()) if each["in"] == "query"]
                urls += [f"{plain}?{name}={odd}" for name in (*query, "other") for odd in ODD_VALUES]
                for url in urls:
                    answer = await api.client.request(method, url, **({"json": {}} if method == "post" else {}))
                    is_bad = answer.status_code >= 500 and not url.startswith("/health/ready")
                    assert not is_bad, (method, url, answer.text)
                    tried += 1
        assert tried > 300
