"""Every answer validates as the openai package's type of it, strictly, but for what docs/protocol.md lists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
from openai.types import Batch, FileDeleted, FileObject, Model
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItem, ConversationItemList
from openai.types.responses import InputTokenCountResponse, Response, ResponsesServerEvent, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from openai.types.shared import ErrorObject
from pydantic import BaseModel

from app.api.docs import schemas
from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from tests.integration.api.common import event_of, rest_of, socket_of
from tests.support.api import MODEL, Api, served
from tests.support.batches import line
from tests.support.counts import counting
from tests.support.player import Player
from tests.support.refusals import CALL, CUSTOM, FUNCTION, IMAGE, NAMESPACE, OUTPUT, SEARCH
from tests.support.sdk import check, mismatches

EVERYTHING: dict[str, Any] = {
    "instructions": "Be brief.",
    "tools": [FUNCTION, CUSTOM, NAMESPACE, SEARCH],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "metadata": {"a": "b"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    "truncation": "auto",
    "top_logprobs": 1,
    "max_output_tokens": 50,
    "max_tool_calls": 1,
    "service_tier": "flex",
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "implicit"},
    "image": {"context_compression": "auto"},
}
MODELS = ModelCatalog((replace(served(), tool_parser="hermes"),))


FAILED = [
    ("server_error", {"code": "server_error"}),
    ("invalid_prompt", {"code": "invalid_prompt"}),
    ("queue_timeout", {"code": "server_error", "reason": "queue_timeout"}),
    ("run_timeout", {"code": "server_error", "reason": "run_timeout"}),
    ("previous_response_not_found", {"code": "invalid_prompt", "reason": "previous_response_not_found"}),
]
"""Codes of failures, and how they are shown: by a code that the package knows."""


async def test_a_response_in_each_state(api: Api, player: Player) -> None:
    for fields in ({}, EVERYTHING):
        response_id = await api.background(**fields)
        check(Response, (await api.get(response_id)).content)
        play = await (await player.begin(response_id)).said("Hi")
        check(Response, (await api.get(response_id)).content)
        await play.finished()
        check(Response, (await api.get(response_id)).content)
        other = await api.background(**fields)
        check(Response, (await api.client.post(f"/v1/responses/{other}/cancel")).content)
    for code, shown in FAILED:
        response_id = await api.background(stream=True)
        await (await player.begin(response_id)).failed(code, "no")
        answer = await api.get(response_id)
        check(Response, answer.content)
        assert answer.json()["error"] == {**shown, "message": "no"}
        async with api.resuming(response_id) as reader:
            events = await rest_of(reader)
        for event in events:
            check(ResponseStreamEvent, event)
        assert [event["code"] for event in events if event["type"] == "error"] == [code]
    response_id = await api.background()
    await (await player.begin(response_id)).failed("context_length_exceeded", "no")
    found = mismatches(Response, (await api.get(response_id)).content)
    assert found == {"error.code": "context_length_exceeded"}, "the code that Codex knows"


async def test_a_stream_and_what_comes_over_a_websocket(api: Api, player: Player) -> None:
    async with player.at_work("Hel", "lo"), api.streaming(**EVERYTHING) as reader:
        events = await rest_of(reader)
    assert events[-1]["type"] == "response.completed"
    for event in events:
        check(ResponseStreamEvent, event)
    sent = {"type": "response.create", "model": MODEL, "input": "Hi", "stream_id": "a"}
    kinds = []
    async with player.at_work("Hi"), socket_of(api) as socket:
        for fields in (sent, {**sent, "temperature": 9}):
            await socket.send(json.dumps(fields))
            while not kinds or kinds[-1] not in ("response.completed", "error"):
                event = await event_of(socket)
                check(ResponsesServerEvent, event)
                kinds.append(event["type"])
            last = kinds.pop()
    assert last == "error"
    assert "response.output_text.delta" in kinds


async def test_lists_of_items_and_empty_ones(api: Api, player: Player) -> None:
    said = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, CALL, OUTPUT]
    response_id = await api.background(input=said, tools=[FUNCTION])
    url = f"/v1/responses/{response_id}/input_items"
    listed = await api.client.get(url, params={"order": "asc"})
    check(ResponseItemList, listed.content)
    behind = await api.client.get(url, params={"order": "asc", "after": listed.json()["last_id"]})
    check(ResponseItemList, behind.content)
    assert behind.json() == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


async def test_conversations_models_counts_and_errors(
    api: Api, player: Player, db: Database, pubsub: PubSub, services: Any
) -> None:
    made = await api.client.post("/v1/conversations", json={"metadata": {"a": "b"}})
    check(Conversation, made.content)
    url = f"/v1/conversations/{made.json()['id']}"
    check(ConversationItemList, (await api.client.get(f"{url}/items")).content)
    for metadata in ({"a": "c"}, None):
        changed = await api.client.post(url, json={"metadata": metadata})
        check(Conversation, changed.content)
        assert changed.json() == made.json() | {"metadata": metadata or {}}
    added = await api.client.post(f"{url}/items", json={"items": [{"role": "user", "content": "Hi"}, CALL, OUTPUT]})
    check(ConversationItemList, added.content)
    for item in added.json()["data"]:
        check(ConversationItem, (await api.client.get(f"{url}/items/{item['id']}")).content)
    check(Conversation, (await api.client.delete(f"{url}/items/{item['id']}")).content)
    check(ConversationDeletedResource, (await api.client.delete(url)).content)

    listed = (await api.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    for model in listed["data"]:
        check(Model, model)
    check(Model, (await api.client.get(f"/v1/models/{MODEL}")).content)
    async with counting(db, pubsub, services.redis_url):
        counted = await api.client.post("/v1/responses/input_tokens", json={"model": MODEL, "input": "x"})
    check(InputTokenCountResponse, counted.content)
    errors: list[tuple[str, str, Any]] = [
        ("POST", "/v1/responses", {"model": MODEL, "input": [IMAGE]}),
        ("POST", "/v1/responses", {"model": "nobody", "input": "x"}),
        ("GET", "/v1/responses/resp_1", None),
    ]
    for method, url, body in errors:
        answer = await api.client.request(method, url, json=body)
        assert list(answer.json()) == ["error"]
        check(ErrorObject, answer.json()["error"])


async def test_files_and_batches(api: Api, client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    """tests/integration/api/test_batches.py has a batch in every status."""
    (tmp_path / "a.jsonl").write_bytes(line("a"))
    for expiry in (openai.omit, EXPIRING):
        made = await client.files.with_raw_response.create(
            file=tmp_path / "a.jsonl", purpose="batch", expires_after=expiry
        )
        for raw in (made, await client.files.with_raw_response.retrieve(made.parse().id)):
            same(FileObject, schemas.File, raw)
    file = made.parse()
    async with client.files.with_streaming_response.content(file.id) as answer:
        await answer.stream_to_file(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == line("a")
    asked: Any = {"input_file_id": file.id, "endpoint": "/v1/responses", "completion_window": "24h"}
    batches = client.batches.with_raw_response
    batch = same(Batch, schemas.Batch, await batches.create(**asked, output_expires_after=EXPIRING))
    same(Batch, schemas.Batch, await batches.retrieve(batch.id))
    for kind, shape, page in (
        (FileObject, schemas.FileList, await client.files.with_raw_response.list()),
        (Batch, schemas.BatchList, await batches.list()),
    ):
        listed = json.loads(page.content)
        shape.model_validate(listed)
        for each in listed["data"]:
            check(kind, each)
        assert [listed["first_id"], listed["last_id"]] == [listed["data"][0]["id"], listed["data"][-1]["id"]]
    other = await client.files.create(file=b"Hello!", purpose="user_data")
    same(FileDeleted, schemas.FileDeleted, await client.files.with_raw_response.delete(other.id))


EXPIRING: Any = {"anchor": "created_at", "seconds": 3600}


def same(kind: type[BaseModel], shape: Any, raw: Any) -> Any:
    """Checks an answer against the package's type and the shape in `/docs`; returns it as the package reads it."""
    check(kind, raw.content)
    shape.model_validate(json.loads(raw.content))
    assert raw.request_id is not None
    return raw.parse()
