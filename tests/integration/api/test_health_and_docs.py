"""Models, readiness, and the start of the API; test_outages.py has readiness while a service is away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.api import readiness
from app.api.docs import schemas
from app.api.readiness import Readiness
from app.store.database import Database
from app.store.queue import workers
from app.store.queue.workers import WorkerIdentity
from tests.support.api import MODEL, Api, served
from tests.support.rows import alive
from tests.support.services import AS_OWNER
from tests.support.waiting import until

OTHER = "org/other-model"


async def test_the_served_models_are_listed_also_in_the_form_of_codex_and_each_is_retrieved(
    api: Api, client: openai.AsyncOpenAI, db: Database
) -> None:
    for name, length, seconds in (("w1", 4096, 60.0), ("w2", 2048, 60.0), ("w3", 16, 0.0)):
        await workers.register(db, WorkerIdentity(name, MODEL, f"model.{MODEL}", "host", 1, length, 8, name), seconds)
    plain = (await api.client.get("/v1/models")).json()
    codex = (await api.client.get("/v1/models", params={"client_version": "0.169.0"})).json()
    for body in (plain, codex):
        schemas.ModelList.model_validate(body)
        shown = [(model["id"], model["context_length"]) for model in body["data"]]
        assert shown == [(MODEL, 2048), (OTHER, None)], "the shortest length of the living workers"
    assert "models" not in plain
    assert [(model["slug"], model["context_window"]) for model in codex["models"]] == [(MODEL, 2048), (OTHER, None)]
    for name in (MODEL, OTHER):
        assert (await client.models.retrieve(name)).id == name
    assert (await api.client.get(f"/v1/models/{MODEL}")).json()["max_model_len"] == 2048
    unknown = await api.client.get("/v1/models/nobody")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_readiness_says_which_models_lack_a_living_worker(api: Api, db: Database) -> None:
    assert (await api.client.get("/health/live")).json() == {"status": "live"}
    await alive(db, "dead", 0.0, model=OTHER)
    await _is_ready(api, 200, "degraded", ["workers"], [], [MODEL, OTHER])
    assert await api.background(), "work is accepted"
    await alive(db, model=MODEL)
    await _is_ready(api, 200, "degraded", ["workers"], [MODEL], [OTHER])
    await _is_ready(api, 200, "ready", [], [MODEL], [], model=MODEL)
    await _is_ready(api, 503, "degraded", ["workers"], [], [OTHER], model=OTHER)
    await alive(db, "w2", model=OTHER)
    await _is_ready(api, 200, "ready", [], [MODEL, OTHER], [])
    answer = await api.client.get("/health/ready", params={"model": "nobody"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    assert (await api.client.get("/health/ready", params={"modle": MODEL})).status_code == 400


async def _is_ready(
    api: Api, status: int, word: str, missing: list[str], ready: list[str], lacking: list[str], **query: str
) -> None:
    """Waits for this answer: a check serves all who ask within a second."""
    expected = {"status": word, "missing": missing, "models": {"ready": ready, "without_worker": lacking}}

    async def found() -> bool:
        answer = await api.client.get("/health/ready", params=query)
        schemas.Ready.model_validate(answer.json())
        return (answer.status_code, answer.json()) == (status, expected)

    await until(found, what=f"{status} with {expected}")


def test_an_adapter_is_ready_with_a_worker_of_its_base_model() -> None:
    tuned = replace(served(), name="tuned", base=MODEL)
    assert Readiness((), frozenset({MODEL})).of([tuned]).with_worker == ("tuned",)


async def test_without_its_schema_work_is_a_503_and_readiness_names_it(api: Api, db: Database) -> None:
    tables = ("alembic_version", "responses")
    await _as_owner(db, *(f"ALTER TABLE {name} RENAME TO {name}_to_come" for name in tables))
    try:
        answer = await api.client.get("/health/ready")
        assert (answer.status_code, answer.json()["missing"]) == (503, ["schema", "workers"])
        assert (await api.post(background=True)).status_code == 503
    finally:
        await _as_owner(db, *(f"ALTER TABLE {name}_to_come RENAME TO {name}" for name in tables))
    assert (await api.post(background=True)).status_code == 200


async def _as_owner(db: Database, *statements: str) -> None:
    async with db.begin() as connection:
        for statement in (AS_OWNER, *statements):
            await connection.execute(text(statement))


async def test_services_that_do_not_answer_do_not_delay_readiness_and_all_who_ask_share_a_check(
    api: Api, db: Database, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    ready_models = workers.ready_models

    async def counted(asked: Database) -> set[str]:
        checks.append(asked)
        return await ready_models(asked)

    monkeypatch.setattr(workers, "ready_models", counted)
    monkeypatch.setattr(readiness, "RECENT_SECONDS", 60.0)
    with services.postgres.frozen(), services.valkey.frozen(), monkeypatch.context() as hurried:
        hurried.setattr(readiness, "CHECK_SECONDS", 0.2)
        answers = await asyncio.gather(*(api.client.get("/health/ready") for _ in range(10)))
    assert [answer.json()["missing"] for answer in answers] == [["postgres", "redis", "workers"]] * 10
    assert len(checks) == 1
