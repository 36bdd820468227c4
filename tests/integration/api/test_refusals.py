"""Requests that are refused over HTTP: their status, and the one form of their errors."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import zstandard

from app.api.docs import schemas
from app.responses.read.reader import ResponseReader
from app.store.database import Database
from tests.integration.api.common import BODIES, ROUTES
from tests.support.api import Api, serving, settings_for
from tests.support.log_lines import logged
from tests.support.player import Player, ids
from tests.support.refusals import CASES

LIMIT = 4096
SETTINGS = {"max_body_bytes": LIMIT}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """Returns the error of an answer, after a check of its form."""
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    schemas.ErrorBody.model_validate(body)
    error: dict[str, Any] = body["error"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 600
    return error


JSON = {"content-type": "application/json"}
PLAIN = {"content-type": "text/plain"}


class TestBodies:
    async def test_every_fault_is_a_400_that_names_its_field_and_nothing_is_stored(
        self, services: Any, db: Database, tmp_path: Path
    ) -> None:
        async with serving(settings_for(services, tmp_path)) as api:
            for fields, code, param in CASES:
                answer = await api.post(**fields, **({"stream": True} if "input" in fields else {}))
                error = error_of(answer)
                assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
                assert (error["code"], error["param"]) == (code, param), fields
        assert await ids(db) == []

    async def test_only_json_is_read_by_whatever_name(self, api: Api) -> None:
        for kind in (
            None,
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "json",
            "application/jsonx",
        ):
            headers = {} if kind is None else {"content-type": kind}
            answer = await api.client.post("/v1/responses", content=b'{"model": "m", "input": "x"}', headers=headers)
            assert answer.status_code == 415
            assert "application/json" in error_of(answer)["message"]
        for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"):
            answer = await api.client.post("/v1/responses", content=b"{}", headers={"content-type": kind})
            assert error_of(answer)["code"] == "missing_required_parameter"

    async def test_a_compressed_body_is_read_and_the_connection_goes_on(self, api: Api) -> None:
        for encoding, sent, status in (
            ("zstd", zstandard.compress(b'{"model": "nobody", "input": "x"}'), 404),
            ("zstd", zstandard.compress(b" " * (LIMIT + 1)), 413),
            ("gzip", gzip.compress(b"{}" * 10)[:-8], 400),
            ("br", b"x" * LIMIT, 415),
            ("gzip", gzip.compress(b"{}"), 400),
        ):
            headers = {**JSON, "content-encoding": encoding}
            answer = await api.client.post("/v1/responses", content=sent, headers=headers)
            assert answer.status_code == status
            error = error_of(answer)
        assert error["code"] == "missing_required_parameter"

    async def test_a_chunked_body_that_is_too_large_is_a_413_and_one_of_exactly_the_limit_is_read(
        self, api: Api
    ) -> None:
        async def endless() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b" " * 1024

        answer = await api.client.post("/v1/responses", content=endless(), headers=JSON)
        assert "content-length" not in answer.request.headers
        assert answer.status_code == 413
        assert error_of(answer)["message"] == f"The body is larger than {LIMIT} bytes."
        body = b'{"model": "nobody", "input": "x"}'.ljust(LIMIT)
        assert (await api.client.post("/v1/responses", content=body, headers=JSON)).status_code == 404


async def test_what_is_unknown_is_a_404_and_a_wrong_method_a_405_with_the_allowed_methods(api: Api) -> None:
    for form in ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True}):
        answer = await api.post(model="nobody", **form)
        error = error_of(answer)
        assert (answer.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert "'nobody'" in error["message"]
    for response_id in ("resp_unknown", "x", "resp_%00", "%ff", "a" * 3000, "%c3%bc", "a%20b", ".."):
        url = f"/v1/responses/{response_id}"
        for method, path in (("GET", url), ("GET", f"{url}?stream=true"), ("POST", f"{url}/cancel"), ("DELETE", url)):
            assert (await sent_raw(api, method, path)).status_code == 404, (method, path)
    for path in ("/v1", "/v2/responses", "/v1/responses/", "/v1/chat", "/v1/x", "/x%0a"):
        assert error_of(await sent_raw(api, "GET", path))["code"] == "unknown_url", path
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("PATCH", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health/live", "GET, HEAD"),
    ):
        answer = await api.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert error_of(answer)["code"] == "method_not_allowed"


async def sent_raw(api: Api, method: str, path: str) -> httpx.Response:
    """Sends a path that httpx would write in another way."""
    request = httpx.Request(method, api.url)
    request.url = httpx.URL(api.url).copy_with(raw_path=path.encode())
    answer = await api.client.send(request)
    error_of(answer)
    return answer


async def test_a_cancel_ends_what_has_not_ended_once_and_for_its_client_too(api: Api, player: Player) -> None:
    response_id = await api.background()
    first = await api.client.post(f"/v1/responses/{response_id}/cancel")
    again = await api.client.post(f"/v1/responses/{response_id}/cancel")
    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await api.get(response_id)).json() == first.json()

    finished = await player.answer("Hi", response_id=await api.background())
    before = (await api.get(finished)).json()
    after = await api.client.post(f"/v1/responses/{finished}/cancel")
    assert (after.status_code, after.json()) == (200, before)

    asking = asyncio.create_task(api.post())
    play = await player.begin()
    cancelled = await api.client.post(f"/v1/responses/{play.id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (await asking).json() == cancelled.json()


async def test_a_deletion_stops_a_response_which_is_a_404_then(api: Api, player: Player) -> None:
    play = await player.begin(await api.background())
    url = f"/v1/responses/{play.id}"
    answer = await api.client.delete(url)
    assert answer.json() == {"id": play.id, "object": "response", "deleted": True}
    assert not await play.write(play.say("more"))
    for method, path in (("GET", url), ("DELETE", url), ("POST", f"{url}/cancel")):
        assert (await api.client.request(method, path)).status_code == 404


async def test_a_bug_is_a_500_without_its_message_and_the_next_request_is_served(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "my secret prompt"

    async def crash(*_: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(ResponseReader, "get", crash)
    caplog.set_level(logging.INFO)
    with logged() as lines:
        answer = await api.get("resp_1")
    error = error_of(answer)
    assert (answer.status_code, error["type"], error["code"]) == (500, "server_error", "server_error")
    assert secret not in answer.text + caplog.text
    assert "RuntimeError" in caplog.text
    (line,) = lines.of("longhaul.api")
    assert (line["request_id"], line["response_id"]) == (answer.headers["x-request-id"], "resp_1")
    assert (await api.client.get("/v1/models")).status_code == 200


async def test_every_answer_has_a_request_id_its_caller_s_own_if_that_is_valid(
    api: Api, client: openai.AsyncOpenAI
) -> None:
    kept, replaced = ("host/Gj2+x9==-000001", "x" * 128), ("x" * 129, "\u001b[31mred", 'a"b', "é", "")
    for sent in (*kept, *replaced):
        for header in ("x-request-id", "x-client-request-id"):
            answer = await api.client.get("/v1/models", headers={header: sent.encode()})
            assert answer.status_code in (200, 400), sent  # a control character is no HTTP
            assert (answer.headers.get("x-request-id") == sent) is (sent in kept)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve("resp_none")
    assert caught.value.request_id and caught.value.code == "response_not_found"


async def test_every_route_refuses_what_it_cannot_read_and_names_what_it_does_not_know(api: Api) -> None:
    posts = [path for path, _ in BODIES]
    for path, whole in BODIES:
        for body, headers, status, code in (
            (b"{", JSON, 400, "invalid_json"),
            (b"{}", PLAIN, 415, "unsupported_media_type"),
            (b" " * (LIMIT + 1), JSON, 413, "request_too_large"),
        ):
            answer = await api.client.post(path, content=body, headers=headers)
            assert (answer.status_code, error_of(answer)["code"]) == (status, code), path
        answer = await api.client.post(path, json={**whole, "zzz": 1})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "zzz"), path
        answer = await api.client.put(path, json={})
        assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_allowed"), path
        assert "POST" in answer.headers["allow"]
    for method, path in (*ROUTES, ("GET", "/v1/models"), *(("POST", path) for path in posts)):
        body = {} if path in posts else None
        answer = await api.client.request(method, path, params={"verbose": "1"}, json=body)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "verbose"), (method, path)
    for method, path in ROUTES:
        answer = await api.client.request(method, path)
        assert (answer.status_code, error_of(answer)["type"]) == (404, "invalid_request_error"), (method, path)
