"""A request's id, from the client's header to the answer, the row and the log; and one access line for each request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from sqlalchemy import text

from app.store.database import Database
from tests.integration.api.common import answer_to, creation, socket_of
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.batches import has_responses
from tests.support.log_lines import Lines, logged
from tests.support.player import ids
from tests.support.tenants import Tenant, as_caller
from tests.support.waiting import until

ID = "mine/1"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = {"x-request-id": ID, "traceparent": PARENT, "tracestate": "congo=1"}
ACCESS = "longhaul.http"
SECRET = "a secret of mine"


async def kept_of(db: Database, response_id: str) -> tuple[Any, ...]:
    query = text("SELECT request_id, traceparent, tracestate FROM responses WHERE id = :id")
    (row,) = await db.execute(query, {"id": response_id})
    return tuple(row)


async def access_line(lines: Lines, **fields: Any) -> dict[str, Any]:
    """The line comes after the answer."""
    found: list[dict[str, Any]] = await until(lambda: lines.of(ACCESS, **fields), what=f"an access line with {fields}")
    return found[0]


async def test_the_id_of_a_request_is_answered_kept_and_logged(api: Api, db: Database) -> None:
    with logged() as lines:
        answer = await api.client.post(
            "/v1/responses?x=1", json={"model": MODEL, "input": SECRET, "background": True}, headers=TRACE
        )
        refused = await access_line(lines, status=400)
        answer = await api.client.post(
            "/v1/responses", json={"model": MODEL, "input": SECRET, "background": True}, headers=TRACE
        )
        response_id = answer.json()["id"]
        line = await access_line(lines, status=200)
    assert answer.headers["x-request-id"] == ID
    assert await kept_of(db, response_id) == (ID, PARENT, "congo=1")
    assert (line["method"], line["route"], line["project"]) == ("POST", "/v1/responses", "default")
    assert (line["request_id"], line["response_id"]) == (ID, response_id)
    assert line["ms"] >= 0 and "response_id" not in refused
    assert SECRET not in json.dumps(lines.all) and "?" not in json.dumps(lines.of(ACCESS))
    forged = {"x-request-id": "x" * 8192, "traceparent": PARENT.upper(), "tracestate": "congo=1"}
    answer = await api.client.post(
        "/v1/responses", json={"model": MODEL, "input": "Hi", "background": True}, headers=forged
    )
    ours = answer.headers["x-request-id"]
    assert ours.startswith("req_") and len(ours) == 36, "an id that is none is replaced"
    assert await kept_of(db, answer.json()["id"]) == (ours, None, None), "a trace that is none is not kept"


async def test_a_read_is_logged_with_the_response_that_it_names(api: Api) -> None:
    response_id = await api.background()
    with logged() as lines:
        for path in (response_id, f"{response_id}/input_items", "resp_1%22%0Ax?secret=1"):
            await api.client.get(f"/v1/responses/{path}", headers={"x-request-id": "r"})
        await api.client.head(f"/v1/responses/{response_id}")
        await api.client.get("/health/live")  # logged at debug alone
        await api.client.get("/secret-path")
        await access_line(lines, route="other")
        found = lines.of(ACCESS)
    route = "/v1/responses/{response_id}"
    assert [line["route"] for line in found] == [route, f"{route}/input_items", route, route, "other"]
    assert [line.get("response_id") for line in found] == [response_id, response_id, None, response_id, None]
    assert found[3]["method"] == "HEAD"
    assert "secret" not in json.dumps(found)


async def test_a_key_and_its_project_are_in_the_line_and_the_secret_is_not(
    services: Any, tmp_path: Path, mine: Tenant
) -> None:
    async with serving(settings_for(services, tmp_path, auth="keys")) as api, as_caller(api, mine) as calling:
        with logged() as lines:
            assert (await calling.client.get("/v1/models")).is_success
            answer = await calling.client.get("/v1/models", headers={"Authorization": "Bearer sk-lh-of-nobody"})
            assert answer.status_code == 401
            refused = await access_line(lines, status=401)
    line = lines.of(ACCESS, status=200)[0]
    assert line["project"] == mine.project and line["key_id"] == mine.key.row.id
    assert "project" not in refused and "sk-lh" not in json.dumps(lines.all)


async def test_a_chat_completion_has_the_same_and_a_client_that_leaves_before_its_answer_is_logged_as_such(
    api: Api, db: Database
) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "stream": True}
    with logged() as lines:
        async with api.client.stream("POST", "/v1/chat/completions", json=asked, headers=TRACE) as answer:
            assert answer.headers["x-request-id"] == ID
            response_id = answer.headers["x-longhaul-response"]
        line = await access_line(lines, route="/v1/chat/completions")
        asking = asyncio.create_task(api.post(input=SECRET))
        await until(lambda: has_responses(db, 2))
        asking.cancel()
        left = await access_line(lines, status=499)
    assert await kept_of(db, response_id) == (ID, PARENT, "congo=1")
    assert (line["status"], line["response_id"]) == (200, response_id)
    assert left["response_id"] == (await ids(db))[1]
    assert SECRET not in json.dumps(lines.all)


async def test_messages_of_a_websocket_have_its_id_and_a_line_each(api: Api, db: Database) -> None:
    with logged() as lines:
        async with socket_of(api, TRACE) as opened:
            assert (await answer_to(opened, "{"))["status"] == 400
            assert (await answer_to(opened, creation(model="none", input=SECRET)))["status"] == 404
            response_id = (await answer_to(opened, creation(input=SECRET)))["response"]["id"]
        await access_line(lines, event="response.create", status=499)
        await access_line(lines, status=101)
        found = lines.of(ACCESS)
    assert await kept_of(db, response_id) == (ID, PARENT, "congo=1")
    assert {line["request_id"] for line in found} == {ID}
    assert [(line.get("event"), line["status"]) for line in found[:2]] == [("invalid", 400), ("response.create", 404)]
    assert lines.of(ACCESS, status=499)[0]["response_id"] == response_id
    assert SECRET not in json.dumps(lines.all)
