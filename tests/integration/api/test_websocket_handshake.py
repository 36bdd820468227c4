"""The handshake of a WebSocket: refused as an HTTP request is, with a status and an error body."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.api import Api


def url_of(api: Api) -> str:
    return f"{api.url.replace('http', 'ws', 1)}/v1/responses"


async def test_a_web_page_of_another_origin_is_refused(api: Api) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(url_of(api), origin="https://elsewhere.example")  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403
    assert json.loads(caught.value.response.body)["error"]["code"] == "origin_not_allowed"


async def test_a_web_page_of_this_server_is_accepted(api: Api) -> None:
    async with connect(url_of(api), origin=api.url) as socket:  # type: ignore[arg-type]
        await socket.send("{")
        assert json.loads(await socket.recv())["type"] == "error"


async def test_unknown_query_parameters_are_refused(api: Api) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"{url_of(api)}?model=x")
    assert caught.value.response.status_code == 400
    assert json.loads(caught.value.response.body)["error"]["param"] == "model"


async def test_the_handshake_has_a_request_id(api: Api) -> None:
    async with connect(url_of(api), additional_headers={"x-request-id": "mine"}) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"] == "mine"
