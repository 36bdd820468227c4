"""Web pages of other origins and HEAD where there is a stream; tests/unit/api/test_browsers.py has the rest."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from tests.integration.api.common import socket_of
from tests.support.api import MODEL, Api
from tests.support.player import Player

PAGE = "https://app.example"
STRANGER = "https://elsewhere.example"
SETTINGS = {"cors_origins": f"http://localhost:3000, {PAGE}"}


async def test_an_allowed_page_may_read_a_stream_and_open_a_websocket_as_it_may_use_http(
    api: Api, player: Player
) -> None:
    body = {"model": MODEL, "input": "Hi", "stream": True}
    async with (
        player.at_work("Hello"),
        api.client.stream("POST", "/v1/responses", json=body, headers={"origin": PAGE}) as stream,
    ):
        assert stream.headers["access-control-allow-origin"] == PAGE
        assert b"response.completed" in await stream.aread()
    async with socket_of(api, origin=PAGE):
        pass
    with pytest.raises(InvalidStatus) as caught:
        await socket_of(api, origin=STRANGER)
    assert caught.value.response.status_code == 403


async def test_without_keys_a_page_of_another_origin_changes_nothing(api: Api) -> None:
    response_id = await api.background(stream=True)
    path = f"/v1/responses/{response_id}"
    for origin in (STRANGER, "null"):
        page = {"origin": origin, "sec-fetch-site": "cross-site"}
        for refused in (
            await api.client.post(f"{path}/cancel", headers=page),
            await api.client.post("/v1/conversations", headers={**page, "content-type": "text/plain"}),
            await api.client.delete(path, headers=page),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert (await api.client.get(path, headers=page)).json()["status"] == "queued"
    head = await api.client.head(f"{path}?stream=true")  # It does not wait for events.
    assert (head.status_code, head.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    for origin in (PAGE, api.url):
        assert (await api.client.post(f"{path}/cancel", headers={"origin": origin})).status_code == 200
