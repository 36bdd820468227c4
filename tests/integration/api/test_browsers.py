"""Web pages of other origins, HEAD, and the headers that clients look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.store.database import Database
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.player import Player

PAGE = "https://app.example"
STRANGER = "https://elsewhere.example"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
async def api(services: Any, db: Database, home: Path) -> AsyncIterator[Api]:
    settings = settings_for(services, home, cors_origins=f"http://localhost:3000, {PAGE}")
    async with serving(settings) as running:
        yield running


def asks(method: str, origin: str = PAGE) -> dict[str, str]:
    """The headers of a browser's preflight request."""
    wanted = {"access-control-request-method": method, "access-control-request-headers": "authorization,content-type"}
    return {"origin": origin, **wanted}


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/responses"), ("DELETE", "/v1/responses/resp_1")])
async def test_a_preflight_of_an_allowed_page_is_answered(api: Api, method: str, path: str) -> None:
    answer = await api.client.options(path, headers=asks(method))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert method in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]


async def test_a_preflight_of_another_page_is_refused(api: Api) -> None:
    answer = await api.client.options("/v1/responses", headers=asks("POST", STRANGER))
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


async def test_a_page_may_read_answers_errors_and_their_headers(api: Api) -> None:
    for path, status in (("/v1/models", 200), ("/v1/responses/resp_none", 404), ("/nowhere", 404)):
        answer = await api.client.get(path, headers={"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-origin" not in (await api.client.get(path, headers={"origin": STRANGER})).headers


async def test_a_page_may_read_a_stream(api: Api, player: Player) -> None:
    body = {"model": MODEL, "input": "Hi", "stream": True}
    async with (
        player.at_work("Hello"),
        api.client.stream("POST", "/v1/responses", json=body, headers={"origin": PAGE}) as stream,
    ):
        assert stream.headers["access-control-allow-origin"] == PAGE
        assert b"response.completed" in await stream.aread()


async def test_a_page_may_open_a_websocket_if_it_may_use_http(api: Api) -> None:
    url = f"{api.url.replace('http', 'ws', 1)}/v1/responses"
    async with connect(url, origin=PAGE):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidStatus) as caught:
        await connect(url, origin=STRANGER)  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403


async def test_head_has_the_headers_of_get_and_no_body(api: Api, player: Player) -> None:
    response_id = await player.answer("Hi", response_id=await api.background())
    for path in ("/v1/models", f"/v1/models/{MODEL}", f"/v1/responses/{response_id}", "/health/live", "/docs", "/none"):
        get, head = await api.client.get(path), await api.client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
    assert (await api.client.head("/v1/responses")).status_code == 405


async def test_head_of_a_stream_does_not_wait_for_its_events(api: Api) -> None:
    response_id = await api.background(stream=True)
    answer = await api.client.head(f"/v1/responses/{response_id}?stream=true")
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/event-stream")


async def test_every_answer_says_how_long_it_took(api: Api) -> None:
    for path in ("/v1/models", "/v1/responses/resp_none", "/nowhere"):
        assert int((await api.client.get(path)).headers["openai-processing-ms"]) >= 0
