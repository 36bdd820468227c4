"""What responses continue: `previous_response_id`, references, `conversation`; `input_items`; tiers and deadlines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import openai
import pytest
from sqlalchemy import text

from app.api.docs import schemas
from app.protocol.events.deltas import Reasoning
from app.responses.models.catalog import Terms
from app.store import paging
from app.store.context.contents import context_items
from app.store.database import Database
from config.models import ModelCatalog
from tests.integration.api.common import error_of
from tests.support.api import MODEL, Api, served
from tests.support.logs import row_of
from tests.support.player import Player, ids

Json = dict[str, Any]

FORMS: list[Json] = [{"background": True}, {"background": True, "stream": True}, {}, {"stream": True}]


def texts(items: list[Json]) -> list[str]:
    return [part["text"] for item in items for part in item["content"]]


class TestPreviousResponse:
    async def test_the_previous_response_is_the_context_of_the_next_without_its_instructions(
        self, api: Api, db: Database, player: Player
    ) -> None:
        first = await player.answer("A", response_id=await api.background(input="a", instructions="Be brief."))
        second = await player.answer("B", response_id=await api.background(input="b", previous_response_id=first))
        third = await row_of(db, await api.background(input="c", previous_response_id=second))
        assert texts(await context_items(db, third)) == ["a", "A", "b", "B"]
        assert (texts(third.request["input"]), third.request["instructions"]) == (["c"], None)
        assert (await api.get(third.id)).json()["previous_response_id"] == second
        without_input = {"model": MODEL, "previous_response_id": first, "background": True}
        answer = await api.client.post("/v1/responses", json=without_input)
        assert (await row_of(db, answer.json()["id"])).request["input"] == []

    async def test_what_cannot_be_continued_is_a_400_in_every_form(
        self, api: Api, db: Database, player: Player
    ) -> None:
        deleted = await player.answer("A", response_id=await api.background())
        await api.client.delete(f"/v1/responses/{deleted}")
        unstored = await player.answer("A", response_id=await api.background(store=False))
        queued, cancelled = await api.background(), await api.background()
        await api.client.post(f"/v1/responses/{cancelled}/cancel")
        before = await ids(db)
        for previous, reason in (
            ("resp_none", "found"),
            (deleted, "found"),
            (unstored, "found"),
            (queued, "finished"),
            (cancelled, "finished"),
        ):
            for form in FORMS if previous == "resp_none" else FORMS[:1]:
                answer = await api.post(previous_response_id=previous, **form)
                assert (answer.status_code, error_of(answer)["param"]) == (400, "previous_response_id")
                assert error_of(answer)["code"] == f"previous_response_not_{reason}"
        assert await ids(db) == before, "nothing was inserted"


def call(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "42"}


async def test_an_output_needs_its_call_in_the_request_or_in_what_it_continues(
    api: Api, db: Database, player: Player
) -> None:
    """tests/integration/store/test_answerable.py has where calls are found."""
    sent = [{"role": "user", "content": "a"}, call("call_1"), call("call_2"), output("call_2")]
    first = await player.answer("A", response_id=await api.background(input=sent))
    made = await api.client.post("/v1/conversations", json={"items": [call("call_3")]})
    chain, conversation = {"previous_response_id": first}, {"conversation": made.json()["id"]}
    for form in FORMS:
        answer = await api.post(input=[output("call_1"), output("call_9"), output("call_8")], **chain, **form)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "input[1].call_id")
        assert "'call_9'" in error_of(answer)["message"]
    for path, context in (("", chain), ("", conversation), ("", {}), ("/input_tokens", {}), ("/compact", {})):
        body = {"model": MODEL, "input": [output("call_9")], **context}
        answer = await api.client.post(f"/v1/responses{path}", json=body)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "input[0].call_id"), (path, context)
    assert await ids(db) == [first], "nothing was inserted"
    for call_id, context in (("call_1", chain), ("call_2", chain), ("call_3", conversation)):
        assert (await api.post(input=[output(call_id)], **context, background=True)).is_success


async def test_an_unstored_response_is_for_its_own_client_alone(api: Api, db: Database, player: Player) -> None:
    async with api.streaming(store=False) as reader:
        play = await player.begin()
        assert (await api.get(play.id)).status_code == 404, "while it runs"
        await play.finished()
        await reader.rest()
    url = f"/v1/responses/{play.id}"
    paths = (("GET", url), ("GET", f"{url}?stream=true"), ("GET", f"{url}/input_items"), ("POST", f"{url}/cancel"))
    for method, path in (*paths, ("DELETE", url)):
        answer = await api.client.request(method, path)
        assert (answer.status_code, error_of(answer)["code"]) == (404, "response_not_found"), (method, path)
    assert await ids(db) == [play.id], "it stays until retention deletes it"

    body, headers = {"model": MODEL, "input": "Hi", "store": False}, {"Idempotency-Key": "k"}
    async with player.at_work("Hello"):
        first = await api.client.post("/v1/responses", json=body, headers=headers)
    again = await api.client.post("/v1/responses", json=body, headers=headers)
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await api.get(first.json()["id"])).status_code == 404
    background = await player.answer("Hi", response_id=await api.background(store=False))
    assert (await api.get(background)).status_code == 200, "for a while"


class TestReferences:
    async def test_references_stand_for_input_and_output_items_and_an_unknown_one_is_a_404(
        self, api: Api, db: Database, player: Player
    ) -> None:
        first = await player.answer("A", response_id=await api.background(input="a"))
        row = await row_of(db, first)
        assert row.output is not None
        items = [row.request["input"][0], row.output[0]]
        sent = [{"type": "item_reference", "id": items[0]["id"]}, {"id": items[1]["id"]}]
        second = await row_of(db, await api.background(input=[*sent, {"role": "user", "content": "b"}]))
        assert second.request["input"][:2] == items
        assert texts(second.request["input"]) == ["a", "A", "b"]
        for item_id in ("msg_none", "msg_0193_0", "msg_" + "0" * 40 + "_0"):
            answer = await api.post(input=[{"role": "user", "content": "x"}, {"type": "item_reference", "id": item_id}])
            error = error_of(answer)
            assert (answer.status_code, error["param"], error["code"]) == (404, "input[1].id", "item_not_found")
        assert len(await ids(db)) == 2

    async def test_reasoning_sent_without_its_text_gets_it_from_the_store(
        self, api: Api, db: Database, player: Player
    ) -> None:
        thought = {"type": "reasoning", "id": "rs_mine", "summary": [], "content": []}
        row = await row_of(db, await api.background(input=[thought, {"role": "user", "content": "x"}]))
        assert row.request["input"][0]["content"] == [], "nobody knows it"
        play = await player.begin(row.id)
        await play.write(play.entry(play.stream.feed(Reasoning("Hm."))))
        await play.finished()
        output = (await row_of(db, row.id)).output
        assert output is not None
        sent = {"type": "reasoning", "id": output[0]["id"], "summary": []}
        second = await row_of(db, await api.background(input=[sent, {"role": "user", "content": "x"}]))
        assert second.request["input"][0] == output[0]


async def test_a_response_reads_its_conversation_as_it_was_at_acceptance_and_adds_to_it(
    api: Api, client: openai.AsyncOpenAI, db: Database, player: Player
) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "a", "type": "message"}])
    async with player.at_work("B"):
        first = await client.responses.create(model=MODEL, input="b", conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    assert texts(await context_items(db, await row_of(db, first.id))) == ["a"]
    listed = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=2)]
    assert [item.content[0].text for item in listed] == ["a", "b", "B"]  # type: ignore[union-attr]

    reference: Any = {"id": conversation.id}
    second = await client.responses.create(model=MODEL, input="c", conversation=reference, background=True)
    await client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "late"}])
    assert texts(await context_items(db, await row_of(db, second.id))) == ["a", "b", "B"]
    await client.conversations.delete(conversation.id)
    await player.answer("C", response_id=second.id)
    assert (await client.responses.retrieve(second.id)).status == "completed", "although it was deleted"
    answer = await api.post(conversation=conversation.id)
    error = error_of(answer)
    assert (answer.status_code, error["param"], error["code"]) == (404, "conversation", "conversation_not_found")


class TestInputItems:
    async def test_its_own_input_items_are_listed_and_paged_in_both_orders(
        self, api: Api, client: openai.AsyncOpenAI, player: Player
    ) -> None:
        first = await player.answer("A", response_id=await api.background(input="a"))
        sent = [{"role": "user", "content": str(number)} for number in range(5)]
        response_id = await api.background(input=sent, previous_response_id=first)
        path = f"/v1/responses/{response_id}/input_items"
        body = (await api.client.get(path)).json()
        schemas.ItemList.model_validate(body)
        assert texts(body["data"]) == ["4", "3", "2", "1", "0"]
        assert (body["first_id"], body["last_id"]) == (body["data"][0]["id"], body["data"][-1]["id"])
        assert body["has_more"] is False
        seen = [item async for item in client.responses.input_items.list(response_id, limit=2, order="asc")]
        assert texts([item.to_dict() for item in seen]) == ["0", "1", "2", "3", "4"]
        for query, named in (({"limit": "٣"}, "limit"), ({"limit": ""}, "limit"), ({"after": "msg_none"}, "after")):
            answer = await api.client.get(path, params=query)
            assert (answer.status_code, error_of(answer)["param"]) == (400, named), "more: unit/api/test_queries.py"
        includes = {"include[]": ["message.input_image.image_url", "message.output_text.logprobs"]}
        assert (await api.client.get(path, params=includes)).status_code == 200
        assert (await api.client.get("/v1/responses/resp_none/input_items")).status_code == 404

    async def test_a_page_ends_at_its_bytes_and_every_item_is_on_one(
        self, api: Api, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paging, "LIST_PAGE_BYTES", 1200)
        sizes = [10, 300, 300, 300, 5000, 10, 900, 900]
        sent: Any = [{"role": "user", "content": f"{number}" * size} for number, size in enumerate(sizes)]
        response_id = await api.background(input=sent)
        conversation = await client.conversations.create(items=sent)
        orders: list[tuple[Any, list[int], list[int]]] = [("asc", [10, 300, 300], sizes), ("desc", [900], sizes[::-1])]
        for order, first, all_sizes in orders:
            for page in (
                await client.responses.input_items.list(response_id, order=order, limit=100),
                await client.conversations.items.list(conversation.id, order=order, limit=100),
            ):
                assert [len(item.content[0].text) for item in page.data] == first  # type: ignore[union-attr]
                assert [len(item.content[0].text) async for item in page] == all_sizes  # type: ignore[union-attr]


async def test_tiers_and_windows_set_class_and_deadline(
    api: Api, db: Database, player: Player, monkeypatch: pytest.MonkeyPatch
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
    sql = "SELECT priority, round(extract(epoch FROM due_at - inserted_at)) AS due FROM responses WHERE id = :id"
    for name, due in (("soonest", None), ("2h", 7200), ("8h", 28800)):
        response_id = await api.background(background_options={"completion_window": name})
        (row,) = await db.execute(text(sql), {"id": response_id})
        assert (row.priority, row.due) == (6 if due is None else 10, due)
        assert (await api.get(response_id)).json()["service_tier"] == "default"
        await api.client.delete(f"/v1/responses/{response_id}")
    options = {"completion_window": "2h", "continuation_id": "agent-7"}
    head = await api.background(background_options=options)
    stranger = await api.background(background_options={"completion_window": "2h"})
    second = await api.background(background_options=options)
    rows = await db.execute(text("SELECT id FROM responses WHERE priority = 10 ORDER BY rank, position"))
    assert [row.id for row in rows] == [head, second, stranger], "what continues goes together"
    monkeypatch.setattr("app.responses.models.catalog._UNLIMITED", Terms(top_tier="flex"))
    answer = await api.post(background=True, background_options={"completion_window": "2h"})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "background_options.completion_window")
    assert error_of(answer)["message"].endswith("needs the service tier 'default'. The project's best is 'flex'.")


class TestDeadlines:
    SETTINGS: ClassVar = {"queue_timeout_seconds": 90.0, "run_timeout_seconds": 600.0}
    MODELS = ModelCatalog((replace(served(), queue_timeout_seconds=60.0, run_timeout_seconds=900.0),))

    async def test_the_shortest_deadline_applies_and_a_longer_one_is_refused(self, api: Api, db: Database) -> None:
        sql = (
            "SELECT extract(epoch FROM queue_deadline - inserted_at) AS q, run_seconds AS r FROM responses WHERE id=:id"
        )
        for asked, expected in (({}, (60.0, 600.0)), ({"queue_timeout": 1.5, "run_timeout": 600}, (1.5, 600.0))):
            (row,) = await db.execute(text(sql), {"id": await api.background(**asked)})
            assert (float(row.q), row.r) == expected
        for name in ("queue_timeout", "run_timeout"):
            answer = await api.post(**{name: 601})
            assert (answer.status_code, error_of(answer)["param"]) == (400, name)
