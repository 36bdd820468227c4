"""What responses continue: `previous_response_id`, references, `conversation`; and `input_items`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.api.docs import schemas
from app.responses.models.catalog import Terms
from app.store import paging
from app.store.context import calls
from app.store.context.contents import chain_items, context_items
from app.store.database import Database
from config.models import ModelCatalog
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.player import Player, ids, row_of

Json = dict[str, Any]


def error_of(answer: Any) -> Json:
    error: Json = answer.json()["error"]
    return error


def texts(items: list[Json]) -> list[str]:
    return [part["text"] for item in items for part in item["content"]]


class TestPreviousResponse:
    async def test_the_previous_response_is_the_context_of_the_next(
        self, api: Api, db: Database, player: Player
    ) -> None:
        first = await player.answer("A", response_id=await api.background(input="a"))
        second = await player.answer("B", response_id=await api.background(input="b", previous_response_id=first))
        third = await row_of(db, await api.background(input="c", previous_response_id=second))
        assert texts(await context_items(db, third)) == ["a", "A", "b", "B"]
        assert texts(third.request["input"]) == ["c"]
        assert (await api.get(third.id)).json()["previous_response_id"] == second

    async def test_an_incomplete_response_can_be_continued_without_input(
        self, api: Api, db: Database, player: Player
    ) -> None:
        first = await player.answer("A", response_id=await api.background(input="a"))
        answer = await api.client.post(
            "/v1/responses", json={"model": MODEL, "previous_response_id": first, "background": True}
        )
        assert answer.status_code == 200
        assert (await row_of(db, answer.json()["id"])).request["input"] == []

    async def test_instructions_are_not_carried_over(self, api: Api, db: Database, player: Player) -> None:
        response_id = await api.background(input="a", instructions="Be brief.")
        first = await player.answer("A", response_id=response_id)
        second = await row_of(db, await api.background(input="b", previous_response_id=first))
        assert second.request["instructions"] is None
        assert texts(await context_items(db, second)) == ["a", "A"]

    @pytest.mark.parametrize("form", [{"background": True}, {"background": True, "stream": True}, {}, {"stream": True}])
    async def test_an_unknown_previous_response_is_a_400_in_every_form(
        self, api: Api, db: Database, form: Json
    ) -> None:
        answer = await api.post(previous_response_id="resp_none", **form)
        error = error_of(answer)
        assert (answer.status_code, error["param"]) == (400, "previous_response_id")
        assert error["code"] == "previous_response_not_found"
        assert await ids(db) == []

    async def test_a_deleted_previous_response_is_unknown(self, api: Api, player: Player) -> None:
        first = await player.answer("A", response_id=await api.background())
        await api.client.delete(f"/v1/responses/{first}")
        assert error_of(await api.post(previous_response_id=first))["code"] == "previous_response_not_found"

    async def test_an_unstored_previous_response_is_unknown(self, api: Api, player: Player) -> None:
        first = await player.answer("A", response_id=await api.background(store=False))
        assert error_of(await api.post(previous_response_id=first))["code"] == "previous_response_not_found"

    async def test_an_unfinished_previous_response_is_a_400(self, api: Api, player: Player) -> None:
        first = await api.background()
        for _ in range(2):
            error = error_of(await api.post(previous_response_id=first))
            assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_finished")
            await api.client.post(f"/v1/responses/{first}/cancel")

    async def test_a_previous_response_deleted_before_a_worker_reads_it_is_a_400(
        self, api: Api, player: Player
    ) -> None:
        import asyncio

        first = await player.answer("A", response_id=await api.background())
        waiting = asyncio.create_task(api.post(previous_response_id=first))
        await (await player.take()).failed("previous_response_not_found", "a response that it continues was deleted")
        answer = await waiting
        assert (answer.status_code, error_of(answer)["param"]) == (400, "previous_response_id")


def call(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str, text: str = "42") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


ODD = 'call "odd" \\u0000\\ \u00fc'
"""The id of a call, which JSON writes in another way."""


class TestOutputs:
    """An output needs its call, in the request or in what the request continues."""

    @pytest.fixture
    async def chain(self, api: Api, player: Player) -> list[str]:
        """Three responses: the first was sent two calls, and the output of one of them."""
        sent = [{"role": "user", "content": "a"}, call("call_1"), call("call_2"), call(ODD), output("call_2")]
        ids = [await player.answer("A", response_id=await api.background(input=sent))]
        for word in ("B", "C"):
            continuing = await api.background(input=word, previous_response_id=ids[-1])
            ids.append(await player.answer(f"{word}\0 'call_id'", response_id=continuing))
        return ids

    @pytest.mark.parametrize("form", [{"background": True}, {"background": True, "stream": True}, {}, {"stream": True}])
    async def test_an_output_without_a_call_in_the_chain_is_a_400_in_every_form(
        self, api: Api, db: Database, chain: list[str], form: Json
    ) -> None:
        for previous in chain:
            sent = [output("call_1"), output("call_9"), output("call_8")]
            answer = await api.post(input=sent, previous_response_id=previous, **form)
            assert (answer.status_code, error_of(answer)["param"]) == (400, "input[1].call_id")
            assert "'call_9'" in error_of(answer)["message"]
        assert sorted(await ids(db)) == sorted(chain), "nothing was inserted"

    @pytest.mark.parametrize("call_id", ["call_1", "call_2", ODD])
    async def test_an_output_may_follow_its_call_from_anywhere_in_the_chain(
        self, api: Api, chain: list[str], call_id: str
    ) -> None:
        for previous in chain:
            answer = await api.post(input=[output(call_id)], previous_response_id=previous, background=True)
            assert answer.status_code == 200, answer.text

    async def test_text_that_looks_like_a_call_is_none(self, api: Api, player: Player) -> None:
        text = '{"type":"function_call","call_id":"call_1"}'
        first = await player.answer(text, response_id=await api.background(input=text))
        second = await player.answer("B", response_id=await api.background(input=text, previous_response_id=first))
        for previous in (first, second):
            answer = await api.post(input=[output("call_1")], previous_response_id=previous)
            assert error_of(answer)["param"] == "input[0].call_id"

    async def test_an_output_needs_its_call_in_the_conversation(self, api: Api) -> None:
        created = await api.client.post("/v1/conversations", json={"items": [call("call_1")]})
        conversation = created.json()["id"]
        refused = await api.post(input=[output("call_2")], conversation=conversation, background=True)
        assert (refused.status_code, error_of(refused)["param"]) == (400, "input[0].call_id")
        assert (await api.post(input=[output("call_1")], conversation=conversation, background=True)).is_success

    async def test_input_without_outputs_and_outputs_of_the_previous_calls_cost_no_query(
        self, api: Api, chain: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "without_call_in_chain", None)
        for sent, previous in (("b", chain[-1]), ([output("call_1")], chain[0])):
            assert (await api.post(input=sent, previous_response_id=previous, background=True)).is_success

    async def test_a_count_and_a_compaction_refuse_it_too(self, api: Api) -> None:
        for path in ("input_tokens", "compact"):
            body = {"model": MODEL, "input": [output("call_1")]}
            answer = await api.client.post(f"/v1/responses/{path}", json=body)
            assert (answer.status_code, error_of(answer)["param"]) == (400, "input[0].call_id")


class TestUnstored:
    """A foreground response with `store` false is for its own client alone."""

    async def test_it_cannot_be_read_listed_cancelled_or_deleted(self, api: Api, db: Database, player: Player) -> None:
        async with player.at_work("Hi"):
            response_id = (await api.post(store=False)).json()["id"]
        url = f"/v1/responses/{response_id}"
        paths = (("GET", url), ("GET", f"{url}?stream=true"), ("GET", f"{url}/input_items"), ("POST", f"{url}/cancel"))
        for method, path in (*paths, ("DELETE", url)):
            answer = await api.client.request(method, path)
            assert (answer.status_code, error_of(answer)["code"]) == (404, "response_not_found"), (method, path)
        assert await ids(db) == [response_id], "it stays until retention deletes it"

    async def test_it_cannot_be_read_while_it_runs(self, api: Api, player: Player) -> None:
        async with api.streaming(store=False) as reader:
            await player.begin()
            created = await reader.event()
            assert created is not None
            assert (await api.get(created["response"]["id"])).status_code == 404

    async def test_a_repeated_idempotency_key_finds_its_answer(self, api: Api, player: Player) -> None:
        body, headers = {"model": MODEL, "input": "Hi", "store": False}, {"Idempotency-Key": "k"}
        async with player.at_work("Hello"):
            first = await api.client.post("/v1/responses", json=body, headers=headers)
        again = await api.client.post("/v1/responses", json=body, headers=headers)
        assert (again.status_code, again.json()) == (200, first.json())
        assert (await api.get(first.json()["id"])).status_code == 404

    async def test_in_the_background_it_can_be_read_for_a_while(self, api: Api, player: Player) -> None:
        response_id = await player.answer("Hi", response_id=await api.background(store=False))
        assert (await api.get(response_id)).json()["status"] == "completed"
        assert (await api.client.delete(f"/v1/responses/{response_id}")).status_code == 200


class TestReferences:
    async def test_references_stand_for_input_and_output_items(self, api: Api, db: Database, player: Player) -> None:
        first = await player.answer("A", response_id=await api.background(input="a"))
        row = await row_of(db, first)
        assert row.output is not None
        items = [row.request["input"][0], row.output[0]]
        sent = [{"type": "item_reference", "id": items[0]["id"]}, {"id": items[1]["id"]}]
        second = await row_of(db, await api.background(input=[*sent, {"role": "user", "content": "b"}]))
        assert second.request["input"][:2] == items
        assert texts(second.request["input"]) == ["a", "A", "b"]

    async def test_an_item_with_u0000_can_be_referenced(self, api: Api, db: Database, player: Player) -> None:
        """Models may generate U+0000. Postgres cannot look into JSON that has it."""
        text_with_nul = 'a\0b, and \\u0000 in letters, "quoted"'
        first = await player.answer(text_with_nul, response_id=await api.background(input="a"))
        row = await row_of(db, first)
        assert row.output is not None
        assert row.output[0]["content"][0]["text"] == text_with_nul
        conversation = (await api.client.post("/v1/conversations", json={})).json()["id"]
        references = [{"type": "item_reference", "id": item["id"]} for item in (*row.request["input"], *row.output)]
        second = await player.answer("b", response_id=await api.background(input=references, conversation=conversation))
        third = await player.answer("c", response_id=await api.background(input="d", conversation=conversation))
        context = await context_items(db, await row_of(db, third))
        assert texts(context) == ["a", text_with_nul, "b"]
        assert texts(await chain_items(db, "default", second)) == texts(context)

    async def test_an_unknown_reference_is_a_404_that_names_it(self, api: Api, db: Database) -> None:
        for item_id in ("msg_none", "msg_0193_0", "msg_" + "0" * 40 + "_0"):
            answer = await api.post(input=[{"role": "user", "content": "x"}, {"type": "item_reference", "id": item_id}])
            error = error_of(answer)
            assert (answer.status_code, error["param"], error["code"]) == (404, "input[1].id", "item_not_found")
        assert await ids(db) == []

    async def test_reasoning_sent_without_its_text_gets_it_from_the_store(
        self, api: Api, db: Database, player: Player
    ) -> None:
        thought = {"type": "reasoning", "id": "rs_mine", "summary": [], "content": []}
        row = await row_of(db, await api.background(input=[thought, {"role": "user", "content": "x"}]))
        assert row.request["input"][0]["content"] == [], "nobody knows it"

        play = await player.begin(row.id)
        from app.protocol.events.deltas import Reasoning

        await play.write(play.entry(play.stream.feed(Reasoning("Hm."))))
        await play.finished()
        output = (await row_of(db, row.id)).output
        assert output is not None
        sent = {"type": "reasoning", "id": output[0]["id"], "summary": []}
        second = await row_of(db, await api.background(input=[sent, {"role": "user", "content": "x"}]))
        assert second.request["input"][0] == output[0]


class TestConversations:
    async def test_a_response_reads_its_conversation_and_adds_to_it(
        self, client: openai.AsyncOpenAI, db: Database, player: Player
    ) -> None:
        conversation = await client.conversations.create(items=[{"role": "user", "content": "a", "type": "message"}])
        async with player.at_work("B"):
            first = await client.responses.create(model=MODEL, input="b", conversation=conversation.id)
        assert first.conversation is not None
        assert first.conversation.id == conversation.id
        assert texts(await context_items(db, await row_of(db, first.id))) == ["a"]
        listed = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=2)]
        assert [item.content[0].text for item in listed] == ["a", "b", "B"]  # type: ignore[union-attr]

        second = await client.responses.create(
            model=MODEL, input="c", conversation={"id": conversation.id}, background=True
        )
        assert texts(await context_items(db, await row_of(db, second.id))) == ["a", "b", "B"]

    async def test_the_context_is_the_conversation_at_acceptance(
        self, client: openai.AsyncOpenAI, db: Database
    ) -> None:
        conversation = await client.conversations.create()
        created = await client.responses.create(model=MODEL, input="b", conversation=conversation.id, background=True)
        await client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "late"}])
        assert await context_items(db, await row_of(db, created.id)) == []

    async def test_a_response_completes_although_its_conversation_was_deleted(
        self, client: openai.AsyncOpenAI, player: Player
    ) -> None:
        conversation = await client.conversations.create()
        created = await client.responses.create(model=MODEL, input="b", conversation=conversation.id, background=True)
        await client.conversations.delete(conversation.id)
        await player.answer("B", response_id=created.id)
        assert (await client.responses.retrieve(created.id)).status == "completed"

    async def test_an_unknown_conversation_is_a_404(self, api: Api) -> None:
        answer = await api.post(conversation="conv_none")
        error = error_of(answer)
        assert (answer.status_code, error["param"], error["code"]) == (404, "conversation", "conversation_not_found")


class TestInputItems:
    SENT = [{"role": "user", "content": str(number)} for number in range(5)]  # noqa: RUF012

    async def test_input_items_are_listed_newest_first(self, api: Api, client: openai.AsyncOpenAI) -> None:
        response_id = await api.background(input=self.SENT)
        listed = await client.responses.input_items.list(response_id)
        assert [item.content[0].text for item in listed.data] == ["4", "3", "2", "1", "0"]  # type: ignore[union-attr]
        body = (await api.client.get(f"/v1/responses/{response_id}/input_items")).json()
        schemas.ItemList.model_validate(body)
        assert (body["first_id"], body["last_id"]) == (body["data"][0]["id"], body["data"][-1]["id"])
        assert body["has_more"] is False

    @pytest.mark.parametrize(("order", "expected"), [("asc", "01234"), ("desc", "43210")])
    async def test_the_sdk_pages_through_input_items(
        self, api: Api, client: openai.AsyncOpenAI, order: Any, expected: str
    ) -> None:
        response_id = await api.background(input=self.SENT)
        seen = [item async for item in client.responses.input_items.list(response_id, limit=2, order=order)]
        assert "".join(item.content[0].text for item in seen) == expected  # type: ignore[union-attr]

    @pytest.mark.parametrize("order", ["asc", "desc"])
    async def test_a_page_ends_at_its_bytes_and_every_item_is_on_one(
        self, api: Api, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, order: Any
    ) -> None:
        monkeypatch.setattr(paging, "LIST_PAGE_BYTES", 1200)
        sizes = [10, 300, 300, 300, 5000, 10, 900, 900]
        sent = [{"role": "user", "content": f"{number}" * size} for number, size in enumerate(sizes)]
        response_id = await api.background(input=sent)
        conversation = await client.conversations.create(items=sent)  # type: ignore[arg-type]
        for page in (
            await client.responses.input_items.list(response_id, order=order, limit=100),
            await client.conversations.items.list(conversation.id, order=order, limit=100),
        ):
            first = [len(item.content[0].text) for item in page.data]  # type: ignore[union-attr]
            assert first == ([10, 300, 300] if order == "asc" else [900])
            seen = [len(item.content[0].text) async for item in page]  # type: ignore[union-attr]
            assert seen == (sizes if order == "asc" else sizes[::-1])

    async def test_input_items_exclude_the_previous_response(self, api: Api, player: Player) -> None:
        first = await player.answer("A", response_id=await api.background(input="a"))
        second = await api.background(input="b", previous_response_id=first)
        body = (await api.client.get(f"/v1/responses/{second}/input_items")).json()
        assert texts(body["data"]) == ["b"]

    async def test_a_bad_query_is_refused_by_name(self, api: Api) -> None:
        """unit/api/test_queries.py has more of them."""
        path = f"/v1/responses/{await api.background()}/input_items"
        for query, named in (({"limit": "٣"}, "limit"), ({"limit": ""}, "limit"), ({"after": "msg_none"}, "after")):
            answer = await api.client.get(path, params=query)
            assert (answer.status_code, error_of(answer)["param"]) == (400, named)

    async def test_supported_includes_are_accepted(self, api: Api) -> None:
        query = {"include[]": ["message.input_image.image_url", "message.output_text.logprobs"]}
        answer = await api.client.get(f"/v1/responses/{await api.background()}/input_items", params=query)
        assert answer.status_code == 200

    async def test_input_items_of_an_unknown_response_are_a_404(self, api: Api) -> None:
        assert (await api.client.get("/v1/responses/resp_none/input_items")).status_code == 404


class TestCapabilities:
    async def test_images_for_a_model_without_images_are_refused_by_their_index(self, api: Api) -> None:
        image = {"type": "input_image", "image_url": "https://example.com/a.png"}
        answer = await api.post(input=[{"role": "user", "content": [{"type": "input_text", "text": "?"}, image]}])
        assert (answer.status_code, error_of(answer)["param"]) == (400, "input[0].content[1]")

    async def test_an_output_without_its_call_is_refused(self, api: Api) -> None:
        answer = await api.post(input=[{"type": "function_call_output", "call_id": "call_1", "output": "x"}])
        assert (answer.status_code, error_of(answer)["param"]) == (400, "input[0].call_id")


class TestTiers:
    async def test_the_service_tier_sets_the_priority_and_foreground_goes_first_within_it(
        self, api: Api, db: Database, player: Player
    ) -> None:
        for tier, echoed, foreground, background in (
            ("auto", "default", 3, 6),
            ("flex", "flex", 8, 9),
            ("priority", "priority", 1, 2),
        ):
            response_id = await api.background(service_tier=tier)
            assert (await row_of(db, response_id)).priority == background
            assert (await api.get(response_id)).json()["service_tier"] == echoed
            async with player.at_work("Hi"):
                body = (await api.post(service_tier=tier)).json()
            assert (await row_of(db, body["id"])).priority == foreground


class TestWindows:
    async def test_a_window_sets_class_and_deadline_and_is_of_the_default_tier(self, api: Api, db: Database) -> None:
        from sqlalchemy import text

        sql = "SELECT priority, round(extract(epoch FROM due_at - inserted_at)) AS due FROM responses WHERE id = :id"
        for name, due in (("soonest", None), ("2h", 7200), ("8h", 28800)):
            response_id = await api.background(background_options={"completion_window": name})
            (row,) = await db.execute(text(sql), {"id": response_id})
            assert (row.priority, row.due) == (6 if due is None else 10, due)
            assert (await api.get(response_id)).json()["service_tier"] == "default"

    async def test_a_project_whose_best_tier_is_flex_has_no_windows(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("app.responses.models.catalog._UNLIMITED", Terms(top_tier="flex"))
        answer = await api.post(background=True, background_options={"completion_window": "2h"})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "background_options.completion_window")
        assert error_of(answer)["message"].endswith("needs the service tier 'default'. The project's best is 'flex'.")

    async def test_what_continues_goes_together(self, api: Api, db: Database) -> None:
        from sqlalchemy import text

        options = {"completion_window": "2h", "continuation_id": "agent-7"}
        head = await api.background(background_options=options)
        stranger = await api.background(background_options={"completion_window": "2h"})
        second = await api.background(background_options=options)
        rows = await db.execute(text("SELECT id FROM responses WHERE priority = 10 ORDER BY rank, position"))
        assert [row.id for row in rows] == [head, second, stranger]


class TestDeadlines:
    @pytest.fixture
    async def api(self, services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
        from dataclasses import replace

        model = replace(served(), queue_timeout_seconds=60.0, run_timeout_seconds=900.0)
        settings = settings_for(services, tmp_path, queue_timeout_seconds=90.0, run_timeout_seconds=600.0)
        async with serving(settings, ModelCatalog((model,))) as running:
            yield running

    async def deadlines(self, db: Database, response_id: str) -> tuple[float, float]:
        from sqlalchemy import text

        sql = (
            "SELECT extract(epoch FROM queue_deadline - inserted_at) AS q, run_seconds AS r FROM responses WHERE id=:id"
        )
        async with db.autocommit() as connection:
            row = (await connection.execute(text(sql), {"id": response_id})).one()
        return float(row.q), row.r

    async def test_the_shorter_deadline_of_settings_and_model_applies(self, api: Api, db: Database) -> None:
        assert await self.deadlines(db, await api.background()) == (60.0, 600.0)

    async def test_a_request_may_shorten_its_deadlines(self, api: Api, db: Database) -> None:
        response_id = await api.background(queue_timeout=1.5, run_timeout=600)
        assert await self.deadlines(db, response_id) == (1.5, 600.0)

    @pytest.mark.parametrize("name", ["queue_timeout", "run_timeout"])
    async def test_a_request_may_not_extend_its_deadlines(self, api: Api, name: str) -> None:
        answer = await api.post(**{name: 601})
        assert (answer.status_code, error_of(answer)["param"]) == (400, name)

    @pytest.mark.parametrize(("code", "status"), [("queue_timeout", 503), ("run_timeout", 504)])
    async def test_a_client_whose_deadline_passed_gets_its_status(
        self, api: Api, player: Player, code: str, status: int
    ) -> None:
        import asyncio

        waiting = asyncio.create_task(api.post())
        await (await player.begin()).failed(code, "too late")
        answer = await waiting
        assert answer.status_code == status
        assert error_of(answer) == {"message": "too late", "type": "server_error", "param": None, "code": code}
