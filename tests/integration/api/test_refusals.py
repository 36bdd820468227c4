"""Requests that are refused over HTTP: their status, and the one form of their errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.api.docs import schemas
from app.responses.read.reader import ResponseReader
from app.store.database import Database
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.player import Player, ids

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
    assert len(error["message"]) < 300
    return error


JSON = {"content-type": "application/json"}


class TestBodies:
    async def test_a_bad_field_is_a_400_that_names_it(self, api: Api) -> None:
        answer = await api.post(input=[{"role": "user", "content": [{"type": "input_text", "text": 5}]}])
        assert answer.status_code == 400
        assert error_of(answer) == {
            "message": "Invalid type for 'input[0].content[0].text': expected a string, but got an integer instead.",
            "type": "invalid_request_error",
            "param": "input[0].content[0].text",
            "code": "invalid_type",
        }

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": NaN}', b"\xff", b"[" * 3000])
    async def test_bad_json_is_a_400(self, api: Api, body: bytes) -> None:
        answer = await api.client.post("/v1/responses", content=body, headers=JSON)
        assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")

    @pytest.mark.parametrize(
        "content_type",
        [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", "application/jsonx"],
    )
    async def test_another_content_type_is_a_415(self, api: Api, content_type: str | None) -> None:
        headers = {} if content_type is None else {"content-type": content_type}
        answer = await api.client.post("/v1/responses", content=b'{"model": "m", "input": "x"}', headers=headers)
        assert answer.status_code == 415
        assert "application/json" in error_of(answer)["message"]

    @pytest.mark.parametrize(
        "content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"]
    )
    async def test_other_json_content_types_are_accepted(self, api: Api, content_type: str) -> None:
        answer = await api.client.post("/v1/responses", content=b"{}", headers={"content-type": content_type})
        assert error_of(answer)["code"] == "missing_required_parameter"

    async def test_a_compressed_body_is_a_415(self, api: Api) -> None:
        headers = {**JSON, "content-encoding": "gzip"}
        answer = await api.client.post("/v1/responses", content=b"x", headers=headers)
        assert answer.status_code == 415
        assert "gzip" in error_of(answer)["message"]

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

    @pytest.mark.parametrize(
        "response_id", ["resp_unknown", "x", "resp_%00", "%ff", "a" * 3000, "%c3%bc", "a%20b", ".."]
    )
    async def test_an_unknown_id_is_a_404(self, api: Api, response_id: str) -> None:
        url = f"/v1/responses/{response_id}"
        for method, path in (("GET", url), ("GET", f"{url}?stream=true"), ("POST", f"{url}/cancel"), ("DELETE", url)):
            request = httpx.Request(method, api.url)
            request.url = httpx.URL(api.url).copy_with(raw_path=path.encode())
            answer = await api.client.send(request)
            assert answer.status_code == 404, (method, path)
            error_of(answer)

    @pytest.mark.parametrize("path", ["/", "/v1", "/v2/responses", "/v1/responses/", "/v1/chat/completions", "/x%0a"])
    async def test_an_unknown_route_is_a_404(self, api: Api, path: str) -> None:
        answer = await api.client.get(httpx.URL(api.url).copy_with(raw_path=path.encode()))
        assert (answer.status_code, error_of(answer)["code"]) == (404, "unknown_url")

    @pytest.mark.parametrize(
        ("method", "path", "allowed"),
        [
            ("PUT", "/v1/responses", "POST"),
            ("GET", "/v1/responses", "POST"),
            ("OPTIONS", "/v1/responses", "POST"),
            ("PATCH", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
            ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
            ("GET", "/v1/responses/resp_1/cancel", "POST"),
            ("DELETE", "/v1/models", "GET, HEAD"),
            ("POST", "/health/live", "GET, HEAD"),
        ],
    )
    async def test_a_wrong_method_is_a_405_with_the_allowed_methods(
        self, api: Api, method: str, path: str, allowed: str
    ) -> None:
        answer = await api.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert error_of(answer)["code"] == "method_not_allowed"

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/v1/responses"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("DELETE", "/v1/responses/resp_1"),
            ("GET", "/v1/models"),
        ],
    )
    async def test_an_unknown_query_parameter_is_a_400(self, api: Api, method: str, path: str) -> None:
        answer = await api.client.request(method, path, params={"verbose": "1"})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "verbose")


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

    async def test_cancelling_a_foreground_response_is_a_400(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"):
            response_id = (await api.post()).json()["id"]
        answer = await api.client.post(f"/v1/responses/{response_id}/cancel")
        assert (answer.status_code, error_of(answer)["code"]) == (400, "response_not_cancellable")

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
        answer = await api.get("resp_1")
        assert answer.status_code == 500
        error = error_of(answer)
        assert (error["type"], error["code"]) == ("server_error", "server_error")
        assert self.SECRET not in answer.text
        assert self.SECRET not in caplog.text
        assert "RuntimeError" in caplog.text
        assert answer.headers["x-request-id"] in caplog.text

    async def test_the_request_after_a_crash_is_served(self, api: Api, broken: None) -> None:
        await api.get("resp_1")
        assert (await api.client.get("/v1/models")).status_code == 200


class TestRequestIds:
    async def test_every_answer_has_its_own_request_id(self, api: Api) -> None:
        seen = {(await api.client.get(path)).headers["x-request-id"] for path in ("/v1/models", "/x", "/health/live")}
        assert len(seen) == 3

    async def test_a_valid_request_id_of_the_caller_is_kept(self, api: Api) -> None:
        for sent, kept in (("job-7.a:b_c", True), ("a b", False), ("x" * 129, False), ("é", False)):
            answer = await api.client.get("/v1/models", headers={"x-request-id": sent.encode()})
            assert (answer.headers["x-request-id"] == sent) is kept

    async def test_the_sdk_sees_the_request_id(self, api: Api) -> None:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            response = await client.responses.create(model=MODEL, input="x", background=True)
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.retrieve("resp_none")
        assert response._request_id
        assert caught.value.request_id
        assert caught.value.code == "response_not_found"
