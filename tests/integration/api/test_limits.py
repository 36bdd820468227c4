"""Limits at the running API: what clients are told, and what survives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
from sqlalchemy import text

from app.access import directory
from app.access.administration import Administration
from app.access.changes import AdministrationError
from app.api.rate_limits import HEADERS
from app.protocol.limits import LimitKind
from app.store.database import Database
from app.store.tenants import limits
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from tests.integration.api.common import answer_to, change, creation, event_of, sdk_of, socket_of
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.counts import counting
from tests.support.logs import row_of
from tests.support.player import Player
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
    ("/v1/chat/completions", MESSAGES),
    ("/v1/chat/completions", {**MESSAGES, "stream": True}),
]
"""Every way to start a response, besides a WebSocket."""
SETTINGS = {"auth": "keys"}


async def limit(admin: Administration, mine: Tenant, **values: int) -> None:
    for kind, value in values.items():
        await admin.set_limits(mine.project, "*", {LimitKind(kind): value})


async def taken(db: Database, mine: Tenant) -> dict[str, float]:
    return {state.kind.value: state.used for state in await limits.states(db, mine.project)}


async def test_every_way_to_create_a_response_has_all_six_headers_and_none_without_limits(
    admin: Administration, mine: Tenant, calling: Api, player: Player
) -> None:
    # So few that none comes back while the test waits for an answer.
    await limit(admin, mine, requests_per_minute=8, tokens_per_minute=10**6)
    async with player.at_work("Hi"):
        for fields in ({"background": True}, {}):
            answer = await calling.post(**fields)
            assert answer.status_code == 200 and set(HEADERS) <= set(answer.headers)
            assert answer.headers["x-ratelimit-limit-requests"] == "8"
            assert int(answer.headers["x-ratelimit-remaining-requests"]) < 8
            async with calling.streaming(**fields) as reader:
                assert set(HEADERS) <= set(reader.response.headers)
                await reader.rest()
    async with as_caller(calling, await tenant(admin, "other")) as other:
        answer = await other.post(background=True)
        assert answer.status_code == 200 and not set(HEADERS) & set(answer.headers)


class TestBeyondTheContext:
    SETTINGS: ClassVar[dict[str, str]] = {"auth": "keys"}
    MODELS = ModelCatalog((replace(served(), context_length=4096),))

    async def test_an_answer_reserves_no_more_than_the_context_holds(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database, player: Player
    ) -> None:
        """Agents ask for more tokens than any context has."""
        await limit(admin, mine, tokens_per_minute=10_000)
        body = {"model": MODEL, "max_tokens": 250_001, **MESSAGES}
        asking = asyncio.create_task(calling.client.post("/v1/messages", json=body))
        play = await player.begin()
        assert 4096 <= (await taken(db, mine))["tokens_per_minute"] < 8000, "the context, and the request"
        assert play.row.request["max_output_tokens"] == 250_001
        await play.finished()
        assert (await asking).status_code == 200


class TestRefusals:
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

    async def test_a_client_that_waits_as_told_gets_in(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, requests_per_minute=120)
        # Until then nothing is refilled.
        await change(db, "UPDATE limits SET as_of = now() + interval '1 hour', used = 110")
        answers = await asyncio.gather(*(calling.post(background=True) for _ in range(20)))
        assert sum(answer.status_code == 200 for answer in answers) == 10
        refused = await calling.post(background=True)
        assert (refused.status_code, refused.headers["retry-after-ms"]) == (429, "500")
        await change(db, "UPDATE limits SET as_of = now()")
        async with sdk_of(calling, mine.key.secret, retries=3) as client:
            await client.responses.create(model=MODEL, input="Hello!", background=True)

    async def test_a_request_that_never_fits_is_not_worth_a_retry_and_another_project_is_not_refused(
        self, admin: Administration, mine: Tenant, calling: Api, api: Api, pubsub: PubSub
    ) -> None:
        assert (await calling.post(background=True)).status_code == 200
        async with pubsub.listen(directory.DOORBELL) as doorbell:
            await doorbell.wait_until_confirmed()
        await limit(admin, mine, tokens_per_minute=100)

        async def is_refused() -> bool:
            return (await calling.post(background=True)).status_code == 429

        await until(is_refused, what="a limit holds for a project that is known already")
        refused = await calling.post(background=True)
        assert refused.status_code == 429 and refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers and "max_output_tokens" in refused.json()["error"]["message"]
        async with as_caller(api, await tenant(admin, "other")) as other:
            assert (await other.post(background=True)).status_code == 200

    async def test_every_way_to_start_a_response_reserves_and_is_refused_with_the_limit_and_when_to_come_again(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database
    ) -> None:
        await limit(admin, mine, unfinished_responses=1, requests_per_minute=100, tokens_per_minute=10**6)
        await calling.background()
        for path, fields in WAYS:
            refused = await calling.client.post(path, json={"model": MODEL, **fields})
            assert refused.status_code == 429, (path, fields)
            assert "unfinished_responses" in refused.json()["error"]["message"]
        assert (await taken(db, mine))["unfinished_responses"] == 1
        app: Any = calling.server.config.app
        posts = {route.path for route in app.routes if "POST" in (getattr(route, "methods", None) or ())}
        started = {path for path in posts if path.startswith(("/v1/responses", "/v1/chat"))}
        others = {"/v1/responses/{response_id}/cancel", "/v1/responses/input_tokens"}
        assert started == {path for path, _ in WAYS} | others, "there is no other"
        async with sdk_of(calling, mine.key.secret) as client:
            with pytest.raises(openai.RateLimitError) as raised:
                await client.responses.create(model=MODEL, input="Hello!", background=True)
        error, headers = raised.value, raised.value.response.headers
        assert (error.status_code, error.code, error.type) == (429, "rate_limit_exceeded", "requests")
        assert f"Limit 'unfinished_responses' of project '{mine.project}' for all models" in error.message
        assert set(HEADERS) <= set(headers)
        assert 1 <= int(headers["retry-after"]) <= 120 and "retry-after-ms" in headers

    async def test_a_count_takes_a_request_a_minute_and_of_no_other_limit(
        self, admin: Administration, mine: Tenant, calling: Api, db: Database, pubsub: PubSub, services: Any
    ) -> None:
        await limit(admin, mine, unfinished_responses=1, tokens_per_minute=2000, requests_per_minute=2)
        await calling.background(max_output_tokens=1)
        before = await taken(db, mine)
        count = partial(calling.client.post, "/v1/responses/input_tokens", json={"model": MODEL, **HELLO})
        async with counting(db, pubsub, services.redis_url):
            answer = await count()
        assert answer.status_code == 200 and answer.headers["x-ratelimit-remaining-requests"] == "0"
        after = await taken(db, mine)
        assert after.pop("requests_per_minute") > before.pop("requests_per_minute") > 0
        assert after["unfinished_responses"] == before["unfinished_responses"] == 1
        assert after["tokens_per_minute"] <= before["tokens_per_minute"]
        assert (await count()).status_code == 429

    async def test_a_websocket_s_request_is_refused_and_the_next_one_served(
        self, admin: Administration, mine: Tenant, api: Api, player: Player
    ) -> None:
        await limit(admin, mine, tokens_per_minute=4000, requests_per_minute=100)
        async with socket_of(api, mine.headers) as socket:
            refused = await answer_to(socket, creation())
            assert (refused["type"], refused["status"]) == ("error", 429)
            assert refused["error"]["code"] == "rate_limit_exceeded"
            assert set(refused["headers"]) == {*HEADERS, "x-should-retry"}
            assert refused["headers"]["x-ratelimit-limit-tokens"] == "4000"
            assert refused["error"]["headers"] == refused["headers"]
            async with player.at_work("Hi"):
                await socket.send(creation(max_output_tokens=10))
                await event_of(socket, "response.completed")


class TestLimits:
    async def test_neither_a_flush_of_redis_nor_a_repeated_key_gets_past_a_limit(
        self, admin: Administration, mine: Tenant, calling: Api, services: Any, db: Database
    ) -> None:
        await limit(admin, mine, unfinished_responses=1)
        body = {"model": MODEL, **HELLO, "background": True}
        post = partial(calling.client.post, "/v1/responses", json=body, headers={"idempotency-key": "one"})
        made = (await post()).json()["id"]
        await asyncio.to_thread(services.empty_valkey)
        assert (await calling.post(background=True)).status_code == 429
        assert (await post()).json()["id"] == made, "it is answered though there is no room"
        assert await taken(db, mine) == {"unfinished_responses": 1}

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
        found = [await db.execute(statement, {"id": each}) for each in (both, alone, plain)]
        assert [tuple(row) for (row,) in found] == [(4096 + 16, "4096"), (4096, "4096"), (16, None)]

    async def test_what_a_response_continues_is_reserved_too(
        self, admin: Administration, mine: Tenant, calling: Api, player: Player, db: Database
    ) -> None:
        await limit(admin, mine, tokens_per_day=10**6)
        first = await player.answer("Hi", response_id=await calling.background(input="x" * 5000))
        items = [{"type": "message", "role": "user", "content": "x" * 5000}]
        made = (await calling.client.post("/v1/conversations", json={"items": items})).json()
        for context in ({"previous_response_id": first}, {"conversation": made["id"]}):
            before = (await taken(db, mine))["tokens_per_day"]
            await calling.background(**context, max_output_tokens=16)
            assert (await taken(db, mine))["tokens_per_day"] > before + 5000


async def test_no_response_gets_a_better_tier_than_its_project(
    admin: Administration, api: Api, calling: Api, mine: Tenant, db: Database
) -> None:
    flex = await tenant(admin, "flex", project=(await admin.create_project("flex", top_tier="flex")).id)
    async with as_caller(api, flex) as other:
        for caller, asked, got, priority in (
            (calling, "priority", "default", 6),
            (calling, "flex", "flex", 9),
            (other, "auto", "flex", 9),
        ):
            created = (await caller.post(background=True, service_tier=asked)).json()
            row = await row_of(db, created["id"])
            assert (created["service_tier"], row.as_object()["service_tier"], row.priority) == (got, got, priority)
    refused = await calling.post(background=True, priority=5)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"
    assert "6 or more" in refused.json()["error"]["message"]
    assert (await calling.post(background=True, priority=7)).status_code == 200
    assert (await admin.change_project(mine.project, top_tier="priority")).top_tier == "priority"

    async def served() -> bool:
        answer = await calling.post(background=True, service_tier="priority")
        return bool(answer.json()["service_tier"] == "priority")

    await until(served, what="the better tier")


async def test_the_limits_of_a_project_are_bounded(
    admin: Administration, mine: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.access.project_limits.MAX_LIMITS", 1)
    await limit(admin, mine, tokens_per_day=5)
    with pytest.raises(AdministrationError, match="has 1 limits"):
        await limit(admin, mine, tokens_per_minute=5)
