"""Models, health, documentation, and the start of the API."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.api import readiness
from app.api.docs import schemas
from app.store.database import Database
from app.store.queue import workers
from app.store.queue.workers import WorkerIdentity
from config.models import Adapter, ModelCatalog
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.celery_processes import ROOT
from tests.support.rows import alive
from tests.support.services import AS_OWNER
from tests.support.waiting import until


class TestModels:
    async def test_the_served_models_are_listed(self, api: Api) -> None:
        body = (await api.client.get("/v1/models")).json()
        schemas.ModelList.model_validate(body)
        assert [model["id"] for model in body["data"]] == [MODEL, "org/other-model"]
        assert "models" not in body

    async def test_the_client_version_of_codex_adds_the_models_in_its_form(self, api: Api) -> None:
        body = (await api.client.get("/v1/models", params={"client_version": "0.169.0"})).json()
        schemas.ModelList.model_validate(body)
        assert [model["slug"] for model in body["models"]] == [model["id"] for model in body["data"]]

    async def test_the_context_length_is_the_shortest_of_the_living_workers(self, api: Api, db: Database) -> None:
        for name, length, seconds in (("w1", 4096, 60.0), ("w2", 2048, 60.0), ("w3", 16, 0.0)):
            await workers.register(
                db, WorkerIdentity(name, MODEL, f"model.{MODEL}", "host", 1, length, 8, name), seconds
            )
        query = {"client_version": "0.169.0"}
        body = (await api.client.get("/v1/models", params=query)).json()
        assert [model["context_length"] for model in body["data"]] == [2048, None]
        assert [model["context_window"] for model in body["models"]] == [2048, None]
        assert (await api.client.get(f"/v1/models/{MODEL}")).json()["max_model_len"] == 2048

    @pytest.mark.parametrize("name", [MODEL, "org/other-model"])
    async def test_each_served_model_can_be_retrieved(self, api: Api, name: str) -> None:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            assert (await client.models.retrieve(name)).id == name

    async def test_an_unknown_model_is_a_404(self, api: Api) -> None:
        answer = await api.client.get("/v1/models/nobody")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


class TestHealth:
    async def test_the_process_is_live(self, api: Api) -> None:
        assert (await api.client.get("/health/live")).json() == {"status": "live"}

    async def test_without_a_worker_work_is_accepted_and_the_answer_says_which_models_lack_one(
        self, api: Api, db: Database
    ) -> None:
        answer = await api.client.get("/health/ready")
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "degraded",
            "missing": ["workers"],
            "models": {"ready": [], "without_worker": [MODEL, "org/other-model"]},
        }
        schemas.Ready.model_validate(answer.json())
        assert await api.background()

    async def test_with_a_worker_for_each_model_nothing_is_missing(self, api: Api, db: Database) -> None:
        await alive(db, model=MODEL)
        await alive(db, "w2", model="org/other-model")
        answer = await api.client.get("/health/ready")
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "ready",
            "missing": [],
            "models": {"ready": [MODEL, "org/other-model"], "without_worker": []},
        }

    async def test_one_model_is_ready_if_it_has_a_living_worker(self, api: Api, db: Database) -> None:
        await alive(db, model=MODEL)
        await alive(db, "dead", 0.0, model="org/other-model")
        answer = await api.client.get("/health/ready", params={"model": MODEL})
        assert (answer.status_code, answer.json()["models"]) == (200, {"ready": [MODEL], "without_worker": []})
        answer = await api.client.get("/health/ready", params={"model": "org/other-model"})
        assert (answer.status_code, answer.json()["status"], answer.json()["missing"]) == (503, "degraded", ["workers"])

    async def test_an_adapter_is_ready_with_a_worker_of_its_base_model(
        self, services: Any, db: Database, tmp_path: Path
    ) -> None:
        catalog = ModelCatalog((replace(served(), adapters=(Adapter("tuned", "/nowhere"),)),))
        await alive(db, model=MODEL)
        async with serving(settings_for(services, tmp_path), catalog) as api:
            assert (await api.client.get("/health/ready", params={"model": "tuned"})).status_code == 200

    async def test_the_readiness_of_an_unknown_model_is_a_404_that_names_the_parameter(self, api: Api) -> None:
        answer = await api.client.get("/health/ready", params={"model": "nobody"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
        assert (await api.client.get("/health/ready", params={"modle": MODEL})).status_code == 400

    async def test_readiness_names_postgres_while_it_is_away_and_recovers(
        self, api: Api, db: Database, services: Any
    ) -> None:
        await asyncio.to_thread(services.postgres.stop)
        answer = await api.client.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json()["status"] == "not_ready"
        assert "postgres" in answer.json()["missing"]
        assert "redis" not in answer.json()["missing"]
        await asyncio.to_thread(services.postgres.start)
        await until(lambda: _missing(api, ["workers"]))

    async def test_without_redis_work_is_accepted_and_no_model_can_answer_now(
        self, api: Api, db: Database, services: Any
    ) -> None:
        await alive(db, model=MODEL)
        await asyncio.to_thread(services.valkey.stop)
        await until(lambda: _missing(api, ["redis", "workers"]))
        assert (await api.client.get("/health/ready")).status_code == 200
        assert await api.background()
        assert (await api.client.get("/health/ready", params={"model": MODEL})).status_code == 503
        assert (await api.post()).status_code == 503
        await asyncio.to_thread(services.valkey.start)
        await until(lambda: _missing(api, ["workers"]))

    async def test_readiness_names_a_schema_that_is_not_there(self, api: Api, db: Database) -> None:
        async with db.begin() as connection:
            await connection.execute(text(AS_OWNER))
            await connection.execute(text("ALTER TABLE alembic_version RENAME TO versions_to_come"))
        try:
            answer = await api.client.get("/health/ready")
            assert (answer.status_code, answer.json()["missing"]) == (503, ["schema", "workers"])
        finally:
            async with db.begin() as connection:
                await connection.execute(text(AS_OWNER))
                await connection.execute(text("ALTER TABLE versions_to_come RENAME TO alembic_version"))

    async def test_however_many_ask_there_is_one_check(
        self, api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checks = []
        monkeypatch.setattr(readiness, "RECENT_SECONDS", 60.0)
        ready_models = workers.ready_models

        async def counted(asked: Database) -> set[str]:
            checks.append(asked)
            return await ready_models(asked)

        monkeypatch.setattr(workers, "ready_models", counted)
        await asyncio.gather(*(api.client.get("/health/ready") for _ in range(10)))
        assert len(checks) == 1

    async def test_a_service_that_does_not_answer_does_not_delay_readiness(
        self, api: Api, db: Database, services: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with services.postgres.frozen(), services.valkey.frozen(), monkeypatch.context() as hurried:
            hurried.setattr(readiness, "CHECK_SECONDS", 0.2)
            answer = await api.client.get("/health/ready")
        assert answer.json()["missing"] == ["postgres", "redis", "workers"]
        await until(lambda: _missing(api, ["workers"]))


async def _missing(api: Api, what: list[str]) -> bool:
    missing: list[str] = (await api.client.get("/health/ready")).json()["missing"]
    return missing == what


class TestDocumentation:
    @pytest.fixture
    async def document(self, api: Api) -> dict[str, Any]:
        schema: dict[str, Any] = (await api.client.get("/openapi.json")).json()
        return schema

    async def test_the_docs_page_is_served(self, api: Api) -> None:
        answer = await api.client.get("/docs")
        assert answer.status_code == 200
        assert "swagger" in answer.text

    async def test_the_docs_page_needs_no_other_server(self, api: Api) -> None:
        page = (await api.client.get("/docs")).text
        own = re.findall(r'(?:src|href)="([^"]*)"', page)
        assert len(own) >= 2
        for path in own:
            assert path.startswith("/")
            assert (await api.client.get(path)).status_code == 200
        assert (await api.client.get("/docs/static/none.js")).json()["error"]["code"] == "unknown_url"

    def test_every_schema_reference_resolves(self, document: dict[str, Any]) -> None:
        for reference in _references(document):
            assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]

    def test_requests_and_answers_share_a_schema_or_have_two_of_different_names(self, document: dict[str, Any]) -> None:
        # FastAPI tells such schemas apart by `-Input` and `-Output`, or by the names of their modules.
        assert not [name for name in document["components"]["schemas"] if "-" in name or "__" in name]

    def test_the_request_has_its_fields_and_examples(self, document: dict[str, Any]) -> None:
        content = document["paths"]["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]
        assert set(content["examples"]) == {"background", "stream", "messages"}
        schema = document["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[-1]]
        assert schema["required"] == ["model"]
        assert schema["additionalProperties"] is False

    async def test_documented_examples_are_valid_requests(self, document: dict[str, Any]) -> None:
        import orjson

        from tests.support.requests import parse_request

        content = document["paths"]["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            parse_request(orjson.dumps(example["value"]))

    def test_errors_are_documented_and_422_is_not(self, document: dict[str, Any]) -> None:
        for path, operations in document["paths"].items():
            for operation in operations.values():
                assert "422" not in operation["responses"]
                if path.startswith("/v1/"):
                    reference = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
                    assert reference.endswith("/ErrorBody")

    def test_the_response_documents_every_field(self, document: dict[str, Any]) -> None:
        schema = document["components"]["schemas"]["Response"]
        assert len(schema["properties"]) >= 31
        shown_where_asked_for = {"input_messages", "output_messages", "omitted_tools"}
        assert set(schema["required"]) == set(schema["properties"]) - shown_where_asked_for


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for child in value.values() for found in _references(child)]
    if isinstance(value, list):
        return [found for child in value for found in _references(child)]
    return []


class TestStart:
    def test_the_api_needs_no_torch_no_vllm_and_no_worker_module(self) -> None:
        code = (
            "import sys, app.main\n"
            "heavy = {'torch', 'vllm', 'transformers', 'workers'} & {name.split('.')[0] for name in sys.modules}\n"
            "sys.exit(repr(heavy) if heavy else 0)"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

    def test_bad_settings_end_the_start_with_one_line(self) -> None:
        code = "from app.main import create_app; create_app()"
        ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode != 0
        assert ended.stderr.count("\n") == 1
        assert "DATABASE_URL" in ended.stderr
