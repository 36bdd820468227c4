"""API keys at the running API: nobody gets in without one, and a key takes along what it has open."""

from __future__ import annotations

import asyncio
import json
import logging

import openai
import pytest
from websockets.exceptions import InvalidStatus

from app.access import directory, refused_keys
from app.access.administration import Administration
from app.access.caller import Scope
from app.access.known_key import REVOKED
from app.access.secret import new_secret
from app.protocol.status import Status
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.integration.api.common import answer_to, creation, event_of, sdk_of, socket_of, tooled
from tests.support.api import MODEL, Api
from tests.support.logs import row_of
from tests.support.player import Player, ids, one
from tests.support.tenants import Tenant
from tests.support.waiting import until

SETTINGS = {"auth": "keys", "cors_origins": "https://app.example"}
MODELS = tooled()


class TestStrangers:
    async def test_every_route_but_life_asks_for_a_key_and_readiness_says_no_more_than_its_status(
        self, api: Api, calling: Api
    ) -> None:
        for method, path in (
            ("POST", "/v1/responses"),
            ("GET", "/v1/models"),
            ("GET", "/openapi.json"),
            ("GET", "/none"),
            ("HEAD", "/v1/models"),
            ("OPTIONS", "/v1/models"),
        ):
            answer = await api.client.request(method, path, json={"model": MODEL, "input": "Hello!"})
            assert answer.status_code == 401, path
            assert "x-request-id" in answer.headers and answer.headers["www-authenticate"] == "Bearer"
        assert (await api.client.get("/health/live")).json() == {"status": "live"}
        assert (await api.client.get("/health/ready")).json() == {"status": "degraded"}
        answers = [await api.client.get("/health/ready", params={"model": name}) for name in (MODEL, "nobody")]
        assert [answer.status_code for answer in answers] == [401, 401], "a stranger learns no names"
        assert answers[0].json() == answers[1].json()
        assert (await calling.client.get("/health/ready", params={"model": MODEL})).status_code == 503
        assert (await calling.client.get("/health/ready")).json()["models"]["without_worker"]

    async def test_clients_sockets_and_web_pages_are_told_that_they_are_refused(self, api: Api, mine: Tenant) -> None:
        async with sdk_of(api, new_secret()) as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                await client.responses.create(model=MODEL, input="Hello!")
        assert (raised.value.status_code, raised.value.code) == (401, "invalid_api_key")
        with pytest.raises(InvalidStatus) as caught:
            await socket_of(api)
        assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"
        async with socket_of(api, mine.headers) as socket:
            assert (await answer_to(socket, "{"))["type"] == "error"
        origin = {"origin": "https://app.example"}
        preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        assert (await api.client.options("/v1/responses", headers={**origin, **preflight})).status_code == 200
        refused = await api.client.post("/v1/responses", headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"

    async def test_a_body_is_not_read_before_the_key_is(self, api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.client.base_url.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()

    async def test_the_log_has_no_key_and_counts_refused_ones_by_id_and_address(
        self, api: Api, calling: Api, mine: Tenant, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(refused_keys, "MINUTE_SECONDS", 0.5)
        with caplog.at_level(logging.INFO):
            await calling.background()
            await calling.client.get("/v1/models", headers={"authorization": f"Bearer {mine.key.secret}x"})
            assert (await calling.client.get("/v1/organization/projects")).status_code == 403
            assert (await api.client.get("/v1/models")).status_code == 401
            wanted = {
                f"refused within a minute: {mine.key.row.id} from 127.0.0.1, 1 x 403",
                "refused within a minute: no API key from 127.0.0.1, 1 x 401",
            }
            await until(lambda: wanted <= set(caplog.messages))
        assert mine.key.secret not in caplog.text


class TestTheEndOfAKey:
    async def test_a_revoked_key_is_refused_and_what_it_had_open_ends(
        self,
        calling: Api,
        mine: Tenant,
        admin: Administration,
        player: Player,
        pubsub: PubSub,
        db: Database,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async with calling.streaming(background=True) as reader:
            play = await player.begin()
            await reader.until_event("response.in_progress")
            asking = asyncio.create_task(calling.post())
            foreground = await one(db, "queued")
            async with pubsub.listen(directory.DOORBELL) as doorbell:
                await doorbell.wait_until_confirmed()
            await admin.revoke_key(mine.key.row.id)
            assert b"[DONE]" not in await reader.rest()
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["message"]) == (401, REVOKED)
        refused = await calling.get(play.id)
        assert (refused.status_code, refused.json()["error"]["message"]) == (401, REVOKED)
        await until(lambda: ids(db, "cancelled"), what="the response of the client that waited is cancelled")
        assert await ids(db, "cancelled") == [foreground]
        assert (await row_of(db, play.id)).status is Status.IN_PROGRESS, "background work goes on"
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    async def test_a_websocket_asks_for_the_scope_with_every_message(
        self, api: Api, calling: Api, mine: Tenant, admin: Administration, player: Player
    ) -> None:
        async with socket_of(api, mine.headers) as socket:
            await socket.send(creation())
            await player.begin()
            await event_of(socket, "response.in_progress")
            await admin.change_key(mine.project, mine.key.row.id, {Scope.READ}, None)

            async def forbidden() -> bool:
                return (await calling.client.post("/v1/responses")).status_code == 403

            await until(forbidden)
            await socket.send(creation(stream_id="b"))
            event = await event_of(socket, "error")
            assert (event["status"], event["stream_id"]) == (403, "b")
            assert event["error"]["code"] == "insufficient_permissions"


class TestPermissions:
    async def test_neither_a_model_nor_a_tool_server_that_is_not_permitted_is_there(
        self, calling: Api, mine: Tenant, admin: Administration
    ) -> None:
        async def serves(*names: str) -> bool:
            return [model["id"] for model in (await calling.client.get("/v1/models")).json()["data"]] == list(names)

        known, unknown = "org/other-model", "org/none-model"
        await until(lambda: serves(MODEL, known))
        await admin.change_project(mine.project, models=[MODEL], tool_servers=["python"])
        await until(lambda: serves(MODEL))
        for name in (known, unknown):
            for answer in (
                await calling.post(model=name, background=True),
                await calling.client.get(f"/v1/models/{name}"),
                await calling.client.post("/v1/responses/input_tokens", json={"model": name, "input": "x"}),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        texts = [(await calling.post(model=name, background=True)).text for name in (known, unknown)]
        assert texts[0].replace(known, "X") == texts[1].replace(unknown, "X")
        docs, none = ({"type": "mcp", "server_label": label} for label in ("docs", "none"))
        texts = [(await calling.post(background=True, tools=[tool])).text for tool in (docs, none)]
        assert texts[0].replace("docs", "X") == texts[1].replace("none", "X")
        assert json.loads(texts[0])["error"]["code"] == "tool_server_not_allowed"
        code = {"type": "code_interpreter", "container": {"type": "auto"}}
        assert (await calling.post(background=True, tools=[code])).status_code == 200
        await admin.change_project(mine.project, models=[], tool_servers=[])
        await until(serves)
        assert (await calling.post(background=True)).status_code == 404
