"""What a model can do is what its workers registered, if the models file leaves it open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.responses.models import registered
from app.store.database import Database
from app.store.queue import workers
from app.store.queue.workers import WorkerIdentity
from app.store.responses import lookup
from config.models import AUTO, ModelCatalog
from tests.support.api import Api, served, serving, settings_for

OPEN = replace(served("open"), format=AUTO, tool_parser=AUTO, reasoning_parser=AUTO, default_sampling=None)
TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(registered, "LOOK_SECONDS", 0.0)
    async with serving(settings_for(services, tmp_path / "home"), ModelCatalog((OPEN,))) as running:
        yield running


async def register(db: Database, name: str = "w", **fields: Any) -> None:
    worker = WorkerIdentity(name, "open", "model.open", "host", 1, 4096, 8, name, **fields)
    await workers.register(db, worker, 60.0)


async def card(api: Api) -> dict[str, Any]:
    body: dict[str, Any] = (await api.client.get("/v1/models/open")).json()
    return body


async def refused(api: Api, **fields: Any) -> tuple[int, str, str]:
    answer = await api.post(model="open", background=True, **fields)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


async def test_before_a_worker_has_read_its_files_a_model_may_do_everything(api: Api) -> None:
    assert (await api.post(model="open", background=True, tools=[TOOL])).status_code == 200
    assert (await api.post(model="open", background=True, reasoning={"effort": "none"})).status_code == 200
    assert (await api.post(model="open", background=True, enable_response_messages=True)).status_code == 200
    assert "function" in (await card(api))["tool_types"]


async def test_tools_of_an_unknown_family_are_refused_by_name_with_what_to_set(api: Api, db: Database) -> None:
    await register(db)
    status, param, message = await refused(api, tools=[TOOL])
    assert (status, param) == (400, "tools")
    assert "no 'tool_parser' follows from its files, and the models file sets none" in message
    assert (await card(api))["tool_types"] == []


async def test_a_family_with_parsers_calls_tools_and_reasons(api: Api, db: Database) -> None:
    await register(db, tool_parser="hermes", reasoning_parser="qwen3")
    answer = await api.post(model="open", background=True, tools=[TOOL], reasoning={"effort": "high"})
    assert answer.status_code == 200
    shown = await card(api)
    assert "function" in shown["tool_types"] and "xhigh" in shown["reasoning_efforts"]
    assert shown["context_length"] == 4096


async def test_a_family_that_speaks_harmony_has_its_efforts_and_messages(api: Api, db: Database) -> None:
    await register(db, format="harmony")
    assert (await card(api))["reasoning_efforts"] == ["low", "medium", "high"]
    assert (await refused(api, reasoning={"effort": "none"}))[:2] == (400, "reasoning.effort")
    assert (await api.post(model="open", background=True, enable_response_messages=True)).status_code == 200


async def test_the_worker_that_started_last_knows_the_files_best(api: Api, db: Database) -> None:
    await register(db, "w1", tool_parser="hermes")
    await register(db, "w2")
    assert (await refused(api, tools=[TOOL]))[:2] == (400, "tools")


async def test_what_a_worker_said_holds_when_it_is_gone(api: Api, db: Database) -> None:
    await register(db)
    assert (await card(api))["tool_types"] == []
    await workers.unregister(db, "w")
    assert (await refused(api, tools=[TOOL]))[:2] == (400, "tools")


async def test_what_a_worker_said_holds_while_postgres_is_away(api: Api, db: Database, services: Any) -> None:
    await register(db, tool_parser="hermes")
    before = await card(api)
    with services.postgres.frozen():
        assert await card(api) == before


async def test_what_a_models_makers_recommend_fills_what_a_request_leaves_open(api: Api, db: Database) -> None:
    await register(db, default_sampling={"temperature": 0.6, "top_k": 20, "min_p": 0.1})
    created = (await api.post(model="open", background=True, min_p=0.2, top_p=0.5)).json()
    row = await lookup.find(db, created["id"])
    assert row is not None
    assert (created["temperature"], created["top_p"]) == (0.6, 0.5)
    assert (row.request["temperature"], row.request["extra"]["top_k"], row.request["extra"]["min_p"]) == (0.6, 20, 0.2)


async def test_before_a_worker_has_read_its_files_sampling_is_that_of_openai(api: Api) -> None:
    created = (await api.post(model="open", background=True)).json()
    assert (created["temperature"], created["top_p"]) == (1.0, 1.0)


SWITCH = {"none": "none", "minimal": "none", "low": "medium", "medium": "medium", "high": "medium"}


@pytest.mark.parametrize(
    ("efforts", "sent", "applied"),
    [
        (SWITCH, "high", "medium"),
        (SWITCH, "minimal", "none"),
        (dict.fromkeys(SWITCH), "high", None),
        (None, "high", "high"),
    ],
)
async def test_a_response_shows_the_effort_that_its_model_heeds(
    api: Api, db: Database, efforts: dict[str, str | None] | None, sent: str, applied: str | None
) -> None:
    await register(db, reasoning_parser="qwen3", efforts=efforts)
    asked = {"effort": sent, "summary": "auto"}
    answer = await api.post(model="open", background=True, reasoning=asked)
    assert answer.json()["reasoning"] == {"effort": applied, "summary": "auto"}
    row = await lookup.find(db, answer.json()["id"])
    assert row is not None and row.request["reasoning"]["effort"] == applied, "its worker reads the same"


async def test_an_effort_that_the_template_refuses_is_refused_with_those_that_it_takes(api: Api, db: Database) -> None:
    await register(db, reasoning_parser="hy_v3", efforts={"low": "low", "high": "high"})
    assert await refused(api, reasoning={"effort": "medium"}) == (
        400,
        "reasoning.effort",
        "Invalid 'reasoning.effort': the model 'open' takes low, high.",
    )
    assert (await api.post(model="open", background=True, reasoning={"summary": "auto"})).status_code == 200
