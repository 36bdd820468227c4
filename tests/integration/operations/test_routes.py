"""`/v1/operator`: who may ask, and what the rows make it say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.access.caller import Scope
from app.protocol.limits import LimitKind
from app.store.database import Database
from app.store.migrate import head
from app.store.queue import workers
from app.store.queue.dispatch import dispatch
from app.streaming.pubsub import PubSub, PubSubUnavailable
from tests.support.api import MODEL, Api, client_of, serving, settings_for
from tests.support.rows import alive, claimed, queued, release_all
from tests.support.tenants import Tenant, as_caller
from tests.support.waiting_rows import take, with_slots
from tests.support.waiting_rows import waiting as waiting_rows

READS = ("status", "queue", "workers", "responses", "responses/resp_1", "responses/resp_1/why", "actions")
ROUTES: list[tuple[str, str, Any]] = [
    *(("GET", path, None) for path in READS),
    ("POST", "actions", {"kind": "cancel", "all": True, "reason": "mischief"}),
    ("POST", "workers/w1/drain", None),
    ("POST", "pauses", {"model": MODEL}),
    ("DELETE", f"pauses?model={MODEL}", None),
]


async def asked(api: Api, path: str, **query: Any) -> dict[str, Any]:
    answer = await api.client.get(f"/v1/operator/{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def changed(db: Database, statement: str, **values: Any) -> None:
    await db.execute(text(statement), values)


async def waiting(db: Database, project: str, count: int = 1, **more: Any) -> list[str]:
    """So many more responses that wait, with ids like those of the API."""
    ids = await waiting_rows(db, project, count, **more)
    await changed(db, "UPDATE responses SET id = replace(id, '.', '-') WHERE id = ANY(:ids)", ids=ids)
    return [each.replace(".", "-") for each in ids]


class TestWhoMayAsk:
    async def test_a_key_without_the_scope_is_refused(self, api: Api, admin: Administration, mine: Tenant) -> None:
        for key in (mine.key.secret, (await admin.create_key(None, "admin", {Scope.ADMIN})).secret):
            async with as_caller(api, key) as calling:
                for method, path, sent in ROUTES:
                    answer = await calling.client.request(method, f"/v1/operator/{path}", json=sent)
                    assert answer.status_code == 403, path
                    assert answer.json()["error"]["code"] == "insufficient_permissions"
        for method, path, sent in ROUTES:
            assert (await api.client.request(method, f"/v1/operator/{path}", json=sent)).status_code == 401

    async def test_without_keys_everybody_on_the_machine_is_an_operator(
        self, services: Any, db: Database, tmp_path: Path
    ) -> None:
        async with serving(settings_for(services, tmp_path)) as running, client_of(running.url) as client:
            assert (await client.get("/v1/operator/status")).status_code == 200

    async def test_wrong_queries_are_refused_by_name(self, operator: Api) -> None:
        for query, name in (({"by": "nobody"}, "by"), ({"limit": 0}, "limit"), ({"more": 1}, "more")):
            answer = await operator.client.get("/v1/operator/queue", params=query)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


class TestStatus:
    async def test_it_tells_what_each_model_has_and_what_is_wrong(self, db: Database, operator: Api) -> None:
        await with_slots(db, 4)
        ids = await waiting(db, "red", 6)
        assert len(await dispatch(db, "model.scripted") or ()) == 4
        await take(db, ids[:3])
        found = await asked(operator, "status")
        (model,) = (each for each in found["models"] if each["model"] == "scripted")
        counts = ("slots", "in_slots", "ahead", "waiting", "sent", "running", "released", "free_slots")
        assert {name: model[name] for name in counts} == {
            "slots": 4,
            "in_slots": 3,
            "ahead": 0,
            "waiting": 2,
            "sent": 1,
            "running": 3,
            "released": 0,
            "free_slots": 0,
        }
        (only,) = model["classes"]
        assert (only["tier"], only["mode"], only["waiting"]) == ("default", "background", 2)
        assert [(each["code"], each["model"]) for each in found["problems"]] == [("no_worker", "org/other-model")]

    async def test_it_tells_that_redis_is_away(self, operator: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        async def ping(_: PubSub) -> None:
            raise PubSubUnavailable("away")

        monkeypatch.setattr(PubSub, "ping", ping)
        assert "redis_away" in {each["code"] for each in (await asked(operator, "status"))["problems"]}

    async def test_limits_that_refuse_are_listed_and_others_are_not(
        self, db: Database, operator: Api, admin: Administration, mine: Tenant
    ) -> None:
        await admin.set_limits(mine.project, "*", {LimitKind.UNFINISHED_RESPONSES: 2, LimitKind.TOKENS_PER_DAY: 100})
        await admin.set_limits(mine.project, "*", {LimitKind.TOKENS_PER_MINUTE: 10})
        await changed(db, "UPDATE limits SET used = 2 WHERE kind = 'unfinished_responses'")
        await changed(db, "UPDATE limits SET used = 50 WHERE kind = 'tokens_per_day'")
        await changed(
            db, "UPDATE limits SET used = 10, as_of = now() - interval '40 s' WHERE kind = 'tokens_per_minute'"
        )
        found = await asked(operator, "status")
        (only,) = found["limits"]
        assert [each["code"] for each in found["notices"]] == ["limits_reached"]
        assert only == {
            "project": mine.project,
            "project_name": "mine",
            "model": "*",
            "kind": "unfinished_responses",
            "value": 2,
            "remaining": 0,
        }

    async def test_a_schema_of_another_version_is_all_that_it_tells(self, db: Database, operator: Api) -> None:
        await changed(db, "UPDATE alembic_version SET version_num = '0001'")
        try:
            found = await asked(operator, "status")
        finally:
            await changed(db, f"UPDATE alembic_version SET version_num = '{head()}'")
        assert [each["code"] for each in found["problems"]] == ["schema"]


class TestQueue:
    async def test_what_has_not_ended_is_counted_by_model_project_and_key(
        self, db: Database, operator: Api, mine: Tenant
    ) -> None:
        await with_slots(db, 2)
        ids = await waiting(db, mine.project, 5)
        await waiting(db, "default", 1, queue="model.other")
        await changed(db, "UPDATE responses SET key_id = :key WHERE queue <> 'model.other'", key=mine.key.row.id)
        await dispatch(db, "model.scripted")
        await take(db, ids[:1])
        for by, who in (
            ("model", {"id": "scripted", "name": "scripted", "project": None}),
            ("project", {"id": mine.project, "name": "mine", "project": None}),
            ("key", {"id": mine.key.row.id, "name": "mine", "project": mine.project}),
        ):
            first, second = (await asked(operator, "queue", by=by))["data"]
            assert {**who, "waiting": 3, "sent": 1, "running": 1, "released": 0}.items() <= first.items(), by
            assert first["oldest_waiting_seconds"] >= 0
            assert second["waiting"] == 1

    async def test_a_limit_keeps_those_with_most(self, db: Database, operator: Api) -> None:
        for number in range(1, 4):
            await waiting(db, f"p{number}", number)
        found = await asked(operator, "queue", by="project", limit=2)
        assert [(each["id"], each["name"]) for each in found["data"]] == [("p3", None), ("p2", None)]
        assert found["has_more"]


class TestWorkers:
    async def test_each_worker_tells_its_state_and_what_it_has(self, db: Database, operator: Api) -> None:
        await alive(db, "ready")
        await alive(db, "draining")
        await alive(db, "lost", lease_seconds=-1)
        await changed(db, "UPDATE workers SET slots = 0 WHERE id = 'draining'")
        await claimed(db, "ready")
        found = {each["name"]: each for each in (await asked(operator, "workers"))["data"]}
        assert {name: each["state"] for name, each in found.items()} == {
            "ready": "ready",
            "draining": "draining",
            "lost": "lost",
        }
        assert (found["ready"]["running"], found["draining"]["running"]) == (1, 0)


class TestWhy:
    async def test_a_response_in_line_is_behind_about_those_whose_turn_comes_before(
        self, db: Database, operator: Api
    ) -> None:
        await with_slots(db, 64)
        ids = [*await waiting(db, "red", 6), *await waiting(db, "blue", 6)]
        behind = {name: (await asked(operator, f"responses/{name}/why"))["behind"] for name in ids}
        order = [message.response_id for message in await dispatch(db, "model.scripted") or ()]
        assert [behind[name] for name in order] == [each for turn in range(6) for each in (2 * turn + 1,) * 2]

    async def test_it_tells_each_step_of_a_response(self, db: Database, operator: Api) -> None:
        async def reason(of: str) -> Any:
            return (await asked(operator, f"responses/{of}/why"))["reason"]

        response = await queued(db)
        assert await reason(response) == "no_worker"
        await alive(db, "w1")
        assert await reason(response) == "due"
        await dispatch(db, "model.scripted")
        assert await reason(response) == "sent"
        await workers.unregister(db, "w1")
        assert await reason(response) == "sent_to_lost_worker"
        row = await claimed(db, "w2")
        await alive(db, "w2")
        assert await reason(row.id) == "running"
        await release_all(db, "w2")
        assert await reason(row.id) == "suspect"
        await changed(db, "UPDATE responses SET crashes = 0 WHERE id = :id", id=row.id)
        assert await reason(row.id) == "released"

    async def test_what_is_not_there_is_a_404(self, operator: Api) -> None:
        for name in ("resp_nobody", "x" * 200, "%00"):
            answer = await operator.client.get(f"/v1/operator/responses/{name}/why")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found"), name
