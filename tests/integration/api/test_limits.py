"""Limits at the running API: what clients are told, and what survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text
from websockets.asyncio.client import connect

from app.access import directory
from app.access.administration import Administration
from app.access.changes import AdministrationError
from app.api.rate_limits import HEADERS
from app.protocol.limits import LimitKind
from app.protocol.requests.bodies.organization import NO_LIMIT
from app.store.database import Database
from app.store.tenants import limits
from app.streaming.pubsub import PubSub
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.player import Player, row_of
from tests.support.tenants import Tenant, as_caller, tenant
from tests.support.waiting import until
from tests.support.worker import worker

HELLO: dict[str, Any] = {"input": "Hello!"}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}]}
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", HELLO),
    ("/v1/responses", {**HELLO, "stream": True}),
    ("/v1/responses", {**HELLO, "background": True}),
    ("/v1/responses", {**HELLO, "background": True, "stream": True}),
    ("/v1/responses", {"input": [{"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}]}),
    ("/v1/responses/compact", HELLO),
    ("/v1/responses/input_tokens", HELLO),
    ("/v1/chat/completions", MESSAGES),
    ("/v1/chat/completions", {**MESSAGES, "stream": True}),
]
"""Every way to start a response, besides a WebSocket."""


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(services, tmp_path, auth="keys")) as running:
        yield running


async def limit(admin: Administration, mine: Tenant, **values: int) -> None:
    for kind, value in values.items():
        await admin.set_limits(mine.project, "*", {LimitKind(kind): value})


async def taken(db: Database, mine: Tenant) -> dict[str, float]:
    return {state.kind.value: state.used for state in await limits.states(db, mine.project)}


async def change(db: Database, statement: str) -> None:
    async with db.begin() as connection:
        await connection.execute(text(statement))


class TestHeaders:
    async def test_every_way_to_create_a_response_has_all_six_headers(
        self, admin: Administration, mine: Tenant, calling: Api, player: Player
    ) -> None:
        await limit(admin, mine, requests_per_minute=1000, tokens_per_minute=10**6)
        async with player.at_work("Hi"):
            for fields in ({"background": True}, {}):
                answer = await calling.post(**fields)
                assert answer.status_code == 200 and set(HEADERS) <= set(answer.headers)
                assert answer.headers["x-ratelimit-limit-requests"] == "1000"
                assert int(answer.headers["x-ratelimit-remaining-requests"]) < 1000
                async with calling.streaming(**fields) as reader:
                    assert set(HEADERS) <= set(reader.response.headers)
                    await reader.rest()

    async def test_a_project_with_charged_limits_alone_reserves_nothing_and_is_told_the_tightest(
        self, admin: Administration, mine: Tenant, calling: Api, player: Player, db: Database
    ) -> None:
        await limit(admin, mine, requests_per_minute=1000, reads_per_minute=1000)
        told = "x-ratelimit-limit-requests"
        async with player.at_work("Hi"):
            for model_limit, tightest in ((None, 1000), (500, 500), (2000, 1000)):
                if model_limit is not None:
                    await admin.set_limits(mine.project, MODEL, {LimitKind.REQUESTS_PER_MINUTE: model_limit})
                    await until(partial(self._is_told, calling, tightest))
                for fields in ({"background": True}, {}):
                    answer = await calling.post(**fields)
                    assert (answer.json()["max_output_tokens"], answer.headers[told]) == (None, str(tightest))
                    assert {name for name in HEADERS if name in answer.headers} == set(HEADERS[:3])
                    async with calling.streaming(**fields) as reader:
                        assert reader.response.headers[told] == str(tightest)
                        await reader.rest()
        async with db.autocommit() as connection:
            reserved = await connection.execute(text("SELECT count(reserved_at) FROM responses"))
            assert reserved.scalar_one() == 0

    @staticmethod
    async def _is_told(calling: Api, value: int) -> bool:
        """A limit holds within a second."""
        answer = await calling.post(background=True)
        return answer.headers["x-ratelimit-limit-requests"] == str(value)

    async def test_without_limits_there_are_no_such_headers(self, calling: Api) -> None:
        answer = await calling.post(background=True)
        assert answer.status_code == 200 and not set(HEADERS) & set(answer.headers)


class TestStoredBytes:
    async def test_no_write_gets_past_the_limit_and_a_deletion_makes_room(
        self, admin: Administration, mine: Tenant, calling: Api
    ) -> None:
        await limit(admin, mine, stored_bytes=8000)
        items = [{"role": "user", "content": "x" * 5000}]
        made = await calling.client.post("/v1/conversations", json={"items": items})
        conversation = f"/v1/conversations/{made.json()['id']}"
        for path, body in (
            ("/v1/conversations", {"items": items}),
            (f"{conversation}/items", {"items": items}),
            (conversation, {"metadata": {f"key_{number}": "x" * 512 for number in range(8)}}),
            ("/v1/responses", {"model": MODEL, "input": "x" * 5000, "background": True}),
        ):
            refused = await calling.client.post(path, json=body)
            assert refused.status_code == 429, (path, refused.text)
            error = refused.json()["error"]
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
            assert "stored_bytes" in error["message"] and "Delete files, responses or conversations" in error["message"]
            assert refused.headers["x-should-retry"] == "false" and "retry-after" not in refused.headers
        assert (await calling.client.delete(conversation)).status_code == 200
        assert (await calling.post(input="x" * 5000, background=True)).status_code == 200


class TestRefusals:
    async def test_the_official_client_raises_its_own_error_and_reads_which_limit(
        self, admin: Administration, mine: Tenant, calling: Api
    ) -> None:
        await limit(admin, mine, unfinished_responses=1, requests_per_minute=100, tokens_per_minute=10**6)
        base = f"{calling.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key=mine.key.secret, max_retries=0) as client:
            await client.responses.create(model=MODEL, input="Hello!", background=True)
            with pytest.raises(openai.RateLimitError) as raised:
                await client.responses.create(model=MODEL, input="Hello!", background=True)
        error, headers = raised.value, raised.value.response.headers
        assert (error.status_code, error.code, error.type) == (429, "rate_limit_exceeded", "requests")
        assert f"Limit 'unfinished_responses' of project '{mine.project}' for all models" in error.message
        assert set(HEADERS) <= set(headers)
        assert 1 <= int(headers["retry-after"]) <= 120 and "retry-after-ms" in headers

    async def test_a_client_that_waits_as_told_gets_in(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, requests_per_minute=120)
        await change(db, "UPDATE limits SET as_of = now() + interval '1 hour'")  # Until then nothing is refilled.
        answers = await asyncio.gather(*(calling.post(background=True) for _ in range(130)))
        assert sum(answer.status_code == 200 for answer in answers) == 120
        refused = await calling.post(background=True)
        assert (refused.status_code, refused.headers["retry-after-ms"]) == (429, "500")
        await change(db, "UPDATE limits SET as_of = now()")
        base = f"{calling.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key=mine.key.secret, max_retries=3) as client:
            await client.responses.create(model=MODEL, input="Hello!", background=True)

    async def test_a_spent_quota_tells_the_true_time(
        self, admin: Administration, mine: Tenant, calling: Api, player: Player
    ) -> None:
        await limit(admin, mine, tokens_per_day=5000)
        assert (await calling.post(background=True, max_output_tokens=100)).status_code == 200
        refused = await calling.post(background=True, max_output_tokens=3900)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == refused.json()["error"]["code"] == "insufficient_quota"
        assert 0 < int(refused.headers["retry-after"]) <= 86400
        await player.answer("Hi")
        assert (await calling.post(background=True, max_output_tokens=3900)).status_code == 200

    async def test_a_request_that_never_fits_is_not_worth_a_retry(
        self, admin: Administration, mine: Tenant, calling: Api
    ) -> None:
        await limit(admin, mine, tokens_per_minute=100)
        refused = await calling.post(background=True)
        assert refused.status_code == 429 and refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers and "max_output_tokens" in refused.json()["error"]["message"]

    async def test_every_way_to_start_a_response_reserves_and_is_refused(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, unfinished_responses=1)
        await calling.background()
        for path, fields in WAYS:
            refused = await calling.client.post(path, json={"model": MODEL, **fields})
            assert refused.status_code == 429, (path, fields)
            assert "unfinished_responses" in refused.json()["error"]["message"]
        assert await taken(db, mine) == {"unfinished_responses": 1}

    async def test_there_is_no_other_route_that_starts_one(self, calling: Api) -> None:
        routes = (await calling.client.get("/openapi.json")).json()["paths"]
        started = ("/v1/responses", "/v1/chat")
        posts = {path for path, methods in routes.items() if "post" in methods and path.startswith(started)}
        assert posts == {path for path, _ in WAYS} | {"/v1/responses/{response_id}/cancel"}

    async def test_a_websocket_s_request_is_refused_and_the_next_one_served(
        self, admin: Administration, mine: Tenant, api: Api, player: Player
    ) -> None:
        """The refusal has all six headers, and the advice of the HTTP answer."""
        await limit(admin, mine, tokens_per_minute=4000, requests_per_minute=100)
        url = f"{api.url.replace('http', 'ws', 1)}/v1/responses"
        event = {"type": "response.create", "model": MODEL, "input": "Hello!"}
        async with connect(url, additional_headers=mine.headers) as socket:
            await socket.send(json.dumps(event))
            refused = json.loads(await socket.recv())
            assert (refused["type"], refused["status"]) == ("error", 429)
            assert refused["error"]["code"] == "rate_limit_exceeded"
            assert set(refused["headers"]) == {*HEADERS, "x-should-retry"}
            assert refused["headers"]["x-ratelimit-limit-tokens"] == "4000"
            assert refused["error"]["headers"] == refused["headers"]
            async with player.at_work("Hi"):
                await socket.send(json.dumps({**event, "max_output_tokens": 10}))
                while (got := json.loads(await socket.recv()))["type"] != "response.completed":
                    assert got["type"].startswith("response.")

    async def test_another_project_is_not_refused(
        self, admin: Administration, mine: Tenant, calling: Api, api: Api
    ) -> None:
        await limit(admin, mine, tokens_per_minute=100)
        assert (await calling.post(background=True)).status_code == 429
        async with as_caller(api, await tenant(admin, "other")) as other:
            assert (await other.post(background=True)).status_code == 200


class TestLimits:
    async def test_a_limit_holds_for_a_project_that_is_known_already(
        self, admin: Administration, mine: Tenant, calling: Api, pubsub: PubSub
    ) -> None:
        assert (await calling.post(background=True)).status_code == 200
        async with pubsub.listen(directory.DOORBELL) as doorbell:
            await doorbell.wait_until_confirmed()
        await limit(admin, mine, tokens_per_minute=100)

        async def refused() -> bool:
            return (await calling.post(background=True)).status_code == 429

        await until(refused, what="a refusal")

    async def test_a_flush_of_redis_changes_nothing(
        self, admin: Administration, mine: Tenant, calling: Api, services: Any, db: Database
    ) -> None:
        await limit(admin, mine, unfinished_responses=2)
        for _ in range(2):
            await calling.background()
        await asyncio.to_thread(services.empty_valkey)
        assert (await calling.post(background=True)).status_code == 429
        assert await taken(db, mine) == {"unfinished_responses": 2}

    async def test_a_client_that_leaves_gives_its_place_back(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, unfinished_responses=1)
        async with calling.streaming() as reader:
            await reader.event()
            assert await taken(db, mine) == {"unfinished_responses": 1}

        async def free() -> bool:
            return await taken(db, mine) == {"unfinished_responses": 0}

        await until(free, what="a free place")

    async def test_output_ends_at_what_was_reserved(
        self, admin: Administration, mine: Tenant, db: Database, pubsub: PubSub, services: Any, tmp_path: Path
    ) -> None:
        await limit(admin, mine, tokens_per_day=10**6)
        free = await tenant(admin, "no limit on tokens")
        await limit(admin, free, queued_bytes=10**6, unfinished_responses=10, stored_bytes=10**6)
        settings = settings_for(services, tmp_path, auth="keys", reserved_output_tokens=20)

        async def answered(caller: Api, **fields: Any) -> dict[str, Any]:
            response_id = await caller.background(input=f"/say {'x' * 50}", **fields)
            await running.run(response_id)
            found: dict[str, Any] = (await caller.client.get(f"/v1/responses/{response_id}")).json()
            return found

        async with (
            serving(settings) as api,
            as_caller(api, mine) as limited,
            as_caller(api, free) as unlimited,
            worker(db, pubsub) as running,
        ):
            cut = await answered(limited)
            assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
            assert cut["usage"]["output_tokens"] == cut["max_output_tokens"] == 20
            assert (await answered(limited, min_tokens=30))["max_output_tokens"] == 30
            assert (await answered(limited, max_output_tokens=90))["status"] == "completed"
            whole = await answered(unlimited)
            assert (whole["status"], whole["max_output_tokens"]) == ("completed", None)

    async def test_a_summary_is_reserved_beside_the_answer_and_ends_there(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, tokens_per_day=10**6)
        compacting = [{"type": "compaction", "compact_threshold": 1000}]
        trigger = [{"role": "user", "content": "Hi"}, {"type": "compaction_trigger"}]
        both = await calling.background(context_management=compacting, max_output_tokens=16)
        alone = await calling.background(input=trigger, max_output_tokens=16)
        plain = await calling.background(max_output_tokens=16)
        statement = text("SELECT reserved_output, request->>'summary_tokens' FROM responses WHERE id = :id")
        async with db.autocommit() as connection:
            found = [(await connection.execute(statement, {"id": each})).one() for each in (both, alone, plain)]
        assert [tuple(each) for each in found] == [(4096 + 16, "4096"), (4096, "4096"), (16, None)]

    async def test_what_a_response_continues_is_reserved_too(
        self, admin: Administration, mine: Tenant, calling: Api, player: Player, db: Database
    ) -> None:
        await limit(admin, mine, tokens_per_day=10**6)
        first = await calling.background(input="x" * 5000)
        await player.answer("Hi", response_id=first)
        before = (await taken(db, mine))["tokens_per_day"]
        await calling.background(previous_response_id=first, max_output_tokens=16)
        assert (await taken(db, mine))["tokens_per_day"] > before + 5000

    async def test_the_items_of_a_conversation_are_reserved_too(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, tokens_per_day=10**6)
        items = [{"type": "message", "role": "user", "content": "x" * 5000}]
        made = (await calling.client.post("/v1/conversations", json={"items": items})).json()
        await calling.background(conversation=made["id"], max_output_tokens=16)
        assert (await taken(db, mine))["tokens_per_day"] > 5000

    async def test_a_repeated_key_is_answered_though_there_is_no_room(
        self, admin: Administration, mine: Tenant, calling: Api
    ) -> None:
        await limit(admin, mine, unfinished_responses=1)
        body = {"model": MODEL, "input": "Hello!", "background": True}
        key = {"idempotency-key": "one"}
        answers = [await calling.client.post("/v1/responses", json=body, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["id"] == answers[1].json()["id"]

    async def test_the_caller_s_key_is_noted(self, mine: Tenant, calling: Api, db: Database, player: Player) -> None:
        await calling.background()
        await player.answer("Hi")
        async with db.autocommit() as connection:
            found = await connection.exec_driver_sql("SELECT project, key_id FROM usage_entries")
            assert [tuple(row) for row in found] == [(mine.project, mine.key.row.id)]

    async def test_the_key_of_a_websocket_is_noted(self, mine: Tenant, api: Api, db: Database, player: Player) -> None:
        url = f"{api.url.replace('http', 'ws', 1)}/v1/responses"
        async with connect(url, additional_headers=mine.headers) as socket, player.at_work("Hi"):
            await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Hello!"}))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
        async with db.autocommit() as connection:
            found = await connection.exec_driver_sql("SELECT project, key_id FROM usage_entries")
            assert [tuple(row) for row in found] == [(mine.project, mine.key.row.id)]


class TestTiers:
    @pytest.mark.parametrize(
        ("top", "asked", "served"),
        [("default", "priority", "default"), ("default", "flex", "flex"), ("flex", "auto", "flex")],
    )
    async def test_no_response_gets_a_better_tier_than_its_project(
        self, admin: Administration, api: Api, db: Database, top: str, asked: str, served: str
    ) -> None:
        project = (await admin.create_project("tiers", top_tier=top)).id
        async with as_caller(api, await tenant(admin, "tiers", project=project)) as caller:
            created = (await caller.post(background=True, service_tier=asked)).json()
        assert created["service_tier"] == served
        row = await row_of(db, created["id"])
        assert row.as_object()["service_tier"] == served
        assert row.priority == {"default": 6, "flex": 9}[served]

    async def test_the_engine_s_priority_is_bounded_by_the_tier_too(
        self, admin: Administration, mine: Tenant, calling: Api
    ) -> None:
        refused = await calling.post(background=True, priority=5)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"
        assert "6 or more" in refused.json()["error"]["message"]
        assert (await calling.post(background=True, priority=7)).status_code == 200

    async def test_a_project_with_priority_gets_it(self, admin: Administration, calling: Api, mine: Tenant) -> None:
        assert (await calling.post(background=True, service_tier="priority")).json()["service_tier"] == "default"
        row = await admin.permit(mine.project, None, None, "priority")
        assert row.top_tier == "priority"

        async def served() -> bool:
            answer = await calling.post(background=True, service_tier="priority")
            return bool(answer.json()["service_tier"] == "priority")

        await until(served, what="the better tier")

    async def test_a_tier_that_is_none_is_refused(self, admin: Administration, mine: Tenant) -> None:
        with pytest.raises(AdministrationError, match="flex, default, priority"):
            await admin.permit(mine.project, None, None, "best")


class TestAdministration:
    async def test_limits_are_listed_and_removed(self, admin: Administration, mine: Tenant) -> None:
        await admin.set_limits(mine.project, "*", {LimitKind.TOKENS_PER_DAY: 5})
        await admin.set_limits(mine.project, MODEL, {LimitKind.TOKENS_PER_DAY: 7})
        found = [(row.project, row.model, row.kind.value, row.value) for row in await limits.find(admin.db)]
        assert found == [
            (mine.project, "*", "tokens_per_day", 5),
            (mine.project, MODEL, "tokens_per_day", 7),
        ]
        await admin.remove_limit(mine.project, LimitKind.TOKENS_PER_DAY)
        assert [row.model for row in await limits.find(admin.db, mine.project)] == [MODEL]
        with pytest.raises(AdministrationError, match="no such limit"):
            await admin.remove_limit(mine.project, LimitKind.TOKENS_PER_DAY)

    @pytest.mark.parametrize("value", [0, -1, NO_LIMIT, 2**53 + 1])
    async def test_a_limit_has_bounds(self, admin: Administration, mine: Tenant, value: int) -> None:
        with pytest.raises(AdministrationError, match="a number from 1 to"):
            await admin.set_limits(mine.project, "*", {LimitKind.TOKENS_PER_DAY: value})

    async def test_the_number_of_limits_is_bounded(
        self, admin: Administration, mine: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("app.access.project_limits.MAX_LIMITS", 1)
        for _ in range(2):
            await admin.set_limits(mine.project, "*", {LimitKind.TOKENS_PER_DAY: 5})
        with pytest.raises(AdministrationError, match="has 1 limits"):
            await admin.set_limits(mine.project, "*", {LimitKind.TOKENS_PER_MINUTE: 5})

    async def test_a_limit_needs_a_project(self, admin: Administration) -> None:
        with pytest.raises(AdministrationError, match="no project 'proj_none'"):
            await admin.set_limits("proj_none", "*", {LimitKind.TOKENS_PER_DAY: 5})
