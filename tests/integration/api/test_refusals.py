"""Requests that are refused over HTTP: their status, and the one form of their errors."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
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
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.log_lines import logged
from tests.support.player import Player, ids
from tests.support.refusals import CASES

LIMIT = 4096


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(services, tmp_path, max_body_bytes=LIMIT)) as running:
        yield running


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

    async def test_a_body_that_is_too_large_is_a_413(self, api: Api) -> None:
        answer = await api.post(input="x" * LIMIT)
        assert answer.status_code == 413
        assert error_of(answer)["message"] == f"The body is larger than {LIMIT} bytes."

    async def test_a_chunked_body_that_is_too_large_is_a_413(self, api: Api) -> None:
        async def endless() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b" " * 1024

        answer = await api.client.post("/v1/responses", content=endless(), headers=JSON)
        assert "content-length" not in answer.request.headers
        assert answer.status_code == 413
        error_of(answer)

    async def test_a_body_of_exactly_the_limit_is_accepted(self, api: Api) -> None:
        body = b'{"model": "nobody", "input": "x"}'.ljust(LIMIT)
        assert (await api.client.post("/v1/responses", content=body, headers=JSON)).status_code == 404

    async def test_a_refused_request_is_not_stored(self, api: Api, db: Database) -> None:
        for fields in ({"tools": [{}]}, {"model": "nobody"}, {"input": []}, {"max_tokens": 1}, {"background": 1}):
            assert 400 <= (await api.post(**fields)).status_code < 500
        assert await ids(db) == []


class TestUnknown:
    async def test_an_unknown_model_is_a_404_as_openai_says_it(self, api: Api) -> None:
        for form in ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True}):
            answer = await api.post(model="nobody", **form)
            assert answer.status_code == 404
            error = error_of(answer)
            assert (error["param"], error["code"]) == ("model", "model_not_found")
            assert "'nobody'" in error["message"]

    async def test_an_unknown_id_is_a_404(self, api: Api) -> None:
        for response_id in ("resp_unknown", "x", "resp_%00", "%ff", "a" * 3000, "%c3%bc", "a%20b", ".."):
            url = f"/v1/responses/{response_id}"
            for method, path in (
                ("GET", url),
                ("GET", f"{url}?stream=true"),
                ("POST", f"{url}/cancel"),
                ("DELETE", url),
            ):
                request = httpx.Request(method, api.url)
                request.url = httpx.URL(api.url).copy_with(raw_path=path.encode())
                answer = await api.client.send(request)
                assert answer.status_code == 404, (method, path)
                error_of(answer)

    async def test_an_unknown_route_is_a_404(self, api: Api) -> None:
        for path in ("/", "/v1", "/v2/responses", "/v1/responses/", "/v1/chat", "/v1/x", "/x%0a"):
            answer = await api.client.get(httpx.URL(api.url).copy_with(raw_path=path.encode()))
            assert (answer.status_code, error_of(answer)["code"]) == (404, "unknown_url")

    async def test_a_wrong_method_is_a_405_with_the_allowed_methods(self, api: Api) -> None:
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


class TestCancel:
    async def test_cancelling_a_queued_response_twice_gives_the_same_answer(self, api: Api) -> None:
        response_id = await api.background()
        first = await api.client.post(f"/v1/responses/{response_id}/cancel")
        again = await api.client.post(f"/v1/responses/{response_id}/cancel")
        assert (first.status_code, first.json()["status"]) == (200, "cancelled")
        assert (again.status_code, again.json()) == (200, first.json())
        assert (await api.get(response_id)).json() == first.json()

    async def test_a_cancelled_running_response_keeps_its_output_so_far(self, api: Api, player: Player) -> None:
        play = await player.begin(await api.background())
        await play.said("Once")
        body = (await api.client.post(f"/v1/responses/{play.id}/cancel")).json()
        assert (body["status"], body["output"][0]["content"][0]["text"]) == ("cancelled", "Once")
        assert body["output"][0]["status"] == "incomplete"

    async def test_cancelling_a_finished_response_returns_it_unchanged(self, api: Api, player: Player) -> None:
        response_id = await player.answer("Hi", response_id=await api.background())
        before = (await api.get(response_id)).json()
        after = await api.client.post(f"/v1/responses/{response_id}/cancel")
        assert (after.status_code, after.json()) == (200, before)

    async def test_cancelling_a_stored_foreground_response_ends_it_for_its_client(
        self, api: Api, player: Player
    ) -> None:
        asking = asyncio.create_task(api.post())
        play = await player.begin()
        cancelled = await api.client.post(f"/v1/responses/{play.id}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert (await asking).json() == cancelled.json()

    async def test_cancelling_a_foreground_response_that_is_not_stored_is_a_404(self, api: Api, player: Player) -> None:
        asking = asyncio.create_task(api.post(store=False))
        play = await player.begin()
        answer = await api.client.post(f"/v1/responses/{play.id}/cancel")
        assert (answer.status_code, error_of(answer)["code"]) == (404, "response_not_found")
        await play.finished()
        assert (await asking).json()["status"] == "completed"

    async def test_the_sdk_cancels_a_response(self, api: Api) -> None:
        response_id = await api.background()
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            assert (await client.responses.cancel(response_id)).status == "cancelled"


class TestDelete:
    async def test_a_deleted_response_is_a_404(self, api: Api, player: Player) -> None:
        response_id = await player.answer("Hi", response_id=await api.background())
        answer = await api.client.delete(f"/v1/responses/{response_id}")
        assert answer.json() == {"id": response_id, "object": "response", "deleted": True}
        assert (await api.get(response_id)).status_code == 404
        assert (await api.client.delete(f"/v1/responses/{response_id}")).status_code == 404

    async def test_deleting_a_running_response_stops_it(self, api: Api, player: Player) -> None:
        play = await player.begin(await api.background())
        assert (await api.client.delete(f"/v1/responses/{play.id}")).status_code == 200
        assert not await play.write(play.say("more"))

    async def test_the_sdk_deletes_a_response(self, api: Api) -> None:
        response_id = await api.background()
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            await client.responses.delete(response_id)
        assert (await api.get(response_id)).status_code == 404


class TestCrashes:
    SECRET = "my secret prompt"

    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def crash(*_: object) -> None:
            raise RuntimeError(self.SECRET)

        monkeypatch.setattr(ResponseReader, "get", crash)

    async def test_a_bug_is_a_500_without_its_message(
        self, api: Api, broken: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        with logged() as lines:
            answer = await api.get("resp_1")
        assert answer.status_code == 500
        error = error_of(answer)
        assert (error["type"], error["code"]) == ("server_error", "server_error")
        assert self.SECRET not in answer.text
        assert self.SECRET not in caplog.text
        assert "RuntimeError" in caplog.text
        (line,) = lines.of("longhaul.api")
        assert (line["request_id"], line["response_id"]) == (answer.headers["x-request-id"], "resp_1")

    async def test_the_request_after_a_crash_is_served(self, api: Api, broken: None) -> None:
        await api.get("resp_1")
        assert (await api.client.get("/v1/models")).status_code == 200


class TestRequestIds:
    async def test_every_answer_has_its_own_request_id(self, api: Api) -> None:
        seen = {(await api.client.get(path)).headers["x-request-id"] for path in ("/v1/models", "/x", "/health/live")}
        assert len(seen) == 3

    async def test_a_valid_request_id_of_the_caller_is_kept(self, api: Api) -> None:
        for sent, kept in (
            ("job-7.a:b_c", True),
            ("host/Gj2+x9==-000001", True),
            ("x" * 128, True),
            ("a b", False),
            ("x" * 129, False),
            ("x" * 8192, False),
            ("a\tb", False),
            ("\u001b[31mred", False),
            ('a"b', False),
            ("é", False),
            ("", False),
        ):
            for header in ("x-request-id", "x-client-request-id"):
                answer = await api.client.get("/v1/models", headers={header: sent.encode()})
                assert answer.status_code in (200, 400), sent  # a control character is no HTTP
                assert (answer.headers.get("x-request-id") == sent) is kept

    async def test_the_sdk_sees_the_request_id(self, api: Api) -> None:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            response = await client.responses.create(model=MODEL, input="x", background=True)
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.retrieve("resp_none")
        assert response._request_id
        assert caught.value.request_id
        assert caught.value.code == "response_not_found"


# Every route


async def test_a_body_that_cannot_be_read_is_refused_on_every_route(api: Api) -> None:
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
    for method, path in (*ROUTES, ("GET", "/v1/models"), *(("POST", path) for path in BODIES)):
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
            "name": "worker-1",
            "action_id": "action_1",
            "batch_id": "batch_1",
            "file_id": "file_1",
            "upload_id": "upload_1",
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
