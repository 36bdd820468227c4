"""What a model can do is what its workers registered, if the models file leaves it open; and changes of that file."""

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
from config import models_file
from config.models import AUTO, ModelCatalog
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.logs import row_of
from tests.support.player import Player
from tests.support.scripted import models_of
from tests.support.waiting import until

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


async def accepted(api: Api, db: Database, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The response as its client sees it, and the request as its worker reads it."""
    answer = await api.post(model="open", background=True, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json(), (await row_of(db, answer.json()["id"])).request


async def test_before_a_worker_has_read_its_files_a_model_may_do_everything(api: Api, db: Database) -> None:
    for fields in ({"tools": [TOOL]}, {"reasoning": {"effort": "none"}}, {"enable_response_messages": True}):
        shown, _ = await accepted(api, db, **fields)
        assert (shown["temperature"], shown["top_p"]) == (1.0, 1.0), "as OpenAI has it"
    assert "function" in (await card(api))["tool_types"]


async def test_the_worker_that_started_last_says_what_a_model_can_do_also_when_it_is_gone(
    api: Api, db: Database, services: Any
) -> None:
    await register(db, "w1", tool_parser="hermes", reasoning_parser="qwen3")
    await accepted(api, db, tools=[TOOL], reasoning={"effort": "high"})
    shown = await card(api)
    assert "function" in shown["tool_types"] and "xhigh" in shown["reasoning_efforts"]
    assert shown["context_length"] == 4096
    with services.postgres.frozen():
        assert await card(api) == shown
    await register(db, "w2")
    for gone in ("w1", "w2"):
        status, param, message = await refused(api, tools=[TOOL])
        assert (status, param) == (400, "tools")
        assert "no 'tool_parser' follows from its files, and the models file sets none" in message
        assert (await card(api))["tool_types"] == []
        await workers.unregister(db, gone)


async def test_a_family_that_speaks_harmony_has_its_efforts_and_messages(api: Api, db: Database) -> None:
    await register(db, format="harmony")
    assert (await card(api))["reasoning_efforts"] == ["low", "medium", "high"]
    assert (await refused(api, reasoning={"effort": "none"}))[:2] == (400, "reasoning.effort")
    await accepted(api, db, enable_response_messages=True)


async def test_what_a_models_makers_recommend_fills_what_a_request_leaves_open(api: Api, db: Database) -> None:
    await register(db, default_sampling={"temperature": 0.6, "top_k": 20, "min_p": 0.1})
    shown, request = await accepted(api, db, min_p=0.2, top_p=0.5)
    assert (shown["temperature"], shown["top_p"]) == (0.6, 0.5)
    assert (request["temperature"], request["extra"]["top_k"], request["extra"]["min_p"]) == (0.6, 20, 0.2)


SWITCH = {"none": "none", "minimal": "none", "low": "medium", "medium": "medium", "high": "medium"}


async def test_a_response_shows_the_effort_that_its_model_heeds_and_others_are_refused(api: Api, db: Database) -> None:
    for number, (efforts, sent, applied) in enumerate(
        (
            (SWITCH, "high", "medium"),
            (SWITCH, "minimal", "none"),
            (dict.fromkeys(SWITCH), "high", None),
            (None, "high", "high"),
        )
    ):
        await register(db, f"w{number}", reasoning_parser="qwen3", efforts=efforts)
        shown, request = await accepted(api, db, reasoning={"effort": sent, "summary": "auto"})
        assert shown["reasoning"] == {"effort": applied, "summary": "auto"}
        assert request["reasoning"]["effort"] == applied, "its worker reads the same"
    await register(db, "last", reasoning_parser="hy_v3", efforts={"low": "low", "high": "high"})
    assert await refused(api, reasoning={"effort": "medium"}) == (
        400,
        "reasoning.effort",
        "Invalid 'reasoning.effort': the model 'open' takes low, high.",
    )
    status, param, message = await refused(api, reasoning_effort="medium")
    assert (status, param) == (400, "reasoning_effort") and "'reasoning_effort'" in message
    await accepted(api, db, reasoning={"summary": "auto"})


async def serves(api: Api, *names: str) -> bool:
    return [model["id"] for model in (await api.client.get("/v1/models")).json()["data"]] == list(names)


async def test_models_are_added_and_taken_away_while_a_stream_goes_on(
    services: Any, player: Player, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A content that is not valid changes nothing: tests/unit/config/test_models_file.py."""
    monkeypatch.setattr(models_file, "LOOK_SECONDS", 0.02)
    path = tmp_path / "models.toml"
    path.write_text(models_of(MODEL))
    async with serving(settings_for(services, tmp_path / "home", models=path), catalog=None) as api:
        async with api.streaming(background=True) as stream:
            first = await stream.event() or {}
            play = await player.begin(first["response"]["id"])
            path.write_text(models_of(MODEL, "added"))
            await until(lambda: serves(api, MODEL, "added"))
            assert (await api.post(model="added", background=True)).status_code == 200
            await play.finished()
            assert b"response.completed" in await stream.rest()
        path.write_text(models_of("other"))
        await until(lambda: serves(api, "other"))
        assert (await api.post(background=True)).status_code == 404
        assert (await api.client.get("/health/ready")).json()["models"]["without_worker"] == ["other"]
