"""`/v1/operator`: who may ask, and what the rows make it say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.access.caller import Scope
from app.protocol.limits import LimitKind
from app.queue.message import Priority
from app.store.batches import rows as batches
from app.store.batches.rows import NewBatch
from app.store.database import Database
from app.store.queue import response_facts, workers
from app.store.queue.dispatch import dispatch
from tests.support.api import CATALOG, Api, client_of, serving, settings_for
from tests.support.rows import Writer, alive, claimed, queued, release_all
from tests.support.tenants import Tenant, as_caller
from tests.support.waiting_rows import QUEUE, take, weigh, with_slots
from tests.support.waiting_rows import waiting as waiting_rows

ROUTES = ("status", "queue", "workers", "responses/resp_1/why")


async def asked(api: Api, path: str, **query: Any) -> dict[str, Any]:
    answer = await api.client.get(f"/v1/operator/{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def changed(db: Database, statement: str, **values: Any) -> None:
    async with db.begin() as connection:
        await connection.execute(text(statement), values)


async def waiting(db: Database, project: str, count: int = 1, **more: Any) -> list[str]:
    """So many more responses that wait, with ids like those of the API."""
    ids = await waiting_rows(db, project, count, **more)
    await changed(db, "UPDATE responses SET id = replace(id, '.', '-') WHERE id = ANY(:ids)", ids=ids)
    return [each.replace(".", "-") for each in ids]


class TestWhoMayAsk:
    @pytest.mark.parametrize("path", ROUTES)
    async def test_a_key_without_the_scope_is_refused(
        self, api: Api, admin: Administration, mine: Tenant, path: str
    ) -> None:
        others = [mine.key.secret, (await admin.create_key(None, "admin", {Scope.ADMIN})).secret]
        for key in others:
            async with as_caller(api, key) as calling:
                answer = await calling.client.get(f"/v1/operator/{path}")
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "insufficient_permissions"
        assert (await api.client.get(f"/v1/operator/{path}")).status_code == 401

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
    async def test_an_idle_deployment_with_workers_has_nothing_wrong(self, db: Database, operator: Api) -> None:
        for model in CATALOG.models:
            await alive(db, model.name, model=model.name)
        found = await asked(operator, "status")
        assert found["problems"] == []
        assert [(model["model"], model["workers"]["ready"]) for model in found["models"]] == [
            ("scripted", 1),
            ("org/other-model", 1),
        ]

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

    async def test_work_with_a_deadline_has_a_mode_of_its_own(self, db: Database, operator: Api) -> None:
        (response,) = await waiting(db, "red", 1, window=3600.0)
        (model,) = (each for each in (await asked(operator, "status"))["models"] if each["model"] == "scripted")
        assert [(each["tier"], each["mode"], each["waiting"]) for each in model["classes"]] == [
            ("default", "window", 1)
        ]
        assert (await asked(operator, f"responses/{response}/why"))["mode"] == "window"

    async def test_released_responses_that_nobody_takes_are_a_sign(self, db: Database, operator: Api) -> None:
        response = await claimed(db, "w1")
        assert response.id
        await release_all(db, "w1")
        await changed(db, "UPDATE responses SET crashes = 0")
        await alive(db, "w2")
        codes = {each["code"] for each in (await asked(operator, "status"))["problems"]}
        assert "released" in codes

    async def test_a_worker_that_died_is_told_as_long_as_a_response_of_it_tells(
        self, db: Database, operator: Api
    ) -> None:
        for model in CATALOG.models:
            await alive(db, f"here-{model.name}", model=model.name)
        row = await claimed(db, "w1")
        await release_all(db, "w1")
        await changed(db, "UPDATE responses SET crashes = 1")
        found = await asked(operator, "status")
        assert found["grade"] == "wrong"
        (suspects,) = found["problems"]
        assert suspects["code"] == "suspects", "it waits for a worker of its own, and was not forgotten"
        assert f"({row.id}, 1 crash)" in suspects["text"]
        (died,) = found["notices"]
        assert (died["code"], died["model"]) == ("worker_died", "scripted")
        assert died["text"].startswith("Worker w1 died at ") and "1 worker ready now" in died["text"]
        await changed(
            db,
            "UPDATE responses SET status = 'completed', finished_at = now(), output = '[]', crashes = 0",
        )
        found = await asked(operator, "status")
        assert (found["grade"], [each["code"] for each in found["notices"]]) == ("attention", ["worker_died"])
        assert "1 response of it went to other workers" in found["notices"][0]["text"]
        await changed(db, "UPDATE responses SET finished_at = now() - interval '11 minutes'")
        assert (await asked(operator, "status"))["grade"] == "fine"

    async def test_what_operators_hold_back_needs_attention_and_is_no_problem(
        self, db: Database, operator: Api, mine: Tenant
    ) -> None:
        for model in CATALOG.models:
            await alive(db, model.name, model=model.name)
        await alive(db, "w2")
        await waiting(db, mine.project, 2)
        asks = {"model": "scripted", "project": mine.project, "reason": "a flood"}
        assert (await operator.client.post("/v1/operator/pauses", json=asks)).status_code == 200
        assert (await operator.client.post("/v1/operator/workers/w2/drain", json={"reason": "fan"})).status_code == 200
        found = await asked(operator, "status")
        assert (found["grade"], found["problems"]) == ("attention", [])
        paused, drained = found["notices"]
        assert "project mine in scripted" in paused["text"] and "by operator (key_" in paused["text"]
        assert '"a flood". 2 responses of it wait.' in paused["text"]
        assert drained["text"].startswith("Worker w2 is drained since ") and '"fan"' in drained["text"]
        (model,) = (each for each in found["models"] if each["model"] == "scripted")
        assert (model["waiting"], model["paused"], model["is_paused"], model["empty_in_seconds"]) == (2, 2, False, None)

    async def test_a_ledger_that_is_late_shows_that_maintenance_is_away(self, db: Database, operator: Api) -> None:
        await changed(
            db,
            "INSERT INTO usage_entries (project, model, tier, at, input_tokens, cached_tokens, output_tokens,"
            " reasoning_tokens) VALUES ('default', 'm', 'default', now() - interval '5 minutes', 1, 0, 1, 0)",
        )
        found = (await asked(operator, "status"))["problems"]
        assert "maintenance_away" in {each["code"] for each in found}

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

    async def test_a_limit_on_requests_a_minute_is_used_up_until_a_minute_after_its_last_one(
        self, db: Database, operator: Api, admin: Administration, mine: Tenant
    ) -> None:
        """Between the moments at which one request gets through."""
        await admin.set_limits(mine.project, "*", {LimitKind.REQUESTS_PER_MINUTE: 30})
        for used, seconds, listed in ((29.2, 3, 1), (28.9, 0, 0), (30.0, 61, 0)):
            await changed(
                db,
                "UPDATE limits SET used = :used, as_of = now() - make_interval(secs => :seconds)",
                used=used,
                seconds=seconds,
            )
            assert len((await asked(operator, "status"))["limits"]) == listed, used

    async def test_a_schema_of_another_version_is_all_that_it_tells(self, db: Database, operator: Api) -> None:
        await changed(db, "UPDATE alembic_version SET version_num = '0001'")
        try:
            found = await asked(operator, "status")
        finally:
            await changed(db, "UPDATE alembic_version SET version_num = '0011'")
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

    async def test_released_responses_are_counted_apart(self, db: Database, operator: Api) -> None:
        await claimed(db, "w1")
        await release_all(db, "w1")
        (only,) = (await asked(operator, "queue"))["data"]
        assert (only["running"], only["released"], only["oldest_waiting_seconds"]) == (0, 1, None)


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

    async def test_tokens_a_second_are_those_of_late(self, db: Database, operator: Api) -> None:
        ids = await waiting(db, "red", 3)
        await with_slots(db, 3)
        await take(db, ids)
        ended = (
            "UPDATE responses SET status = 'completed', worker = NULL, output = '[]', finished_at = now() - :ago *"
            " interval '1 s', started_at = now() - (:ago + 60) * interval '1 s', usage = :usage WHERE id = :id"
        )
        for id_, ago in zip(ids, (10, 270, 1000), strict=True):
            await changed(db, ended, id=id_, ago=ago, usage='{"input_tokens": 1, "output_tokens": 600}')
        (only,) = (await asked(operator, "workers"))["data"]
        assert only["tokens_per_second"] == pytest.approx((600 + 300) / 300, rel=0.1), "half of one was before"


class TestWhy:
    async def test_the_place_in_line_is_that_in_the_next_dispatch(self, db: Database, operator: Api) -> None:
        await weigh(db, "red", 1.0)
        await weigh(db, "blue", 2.0)
        await with_slots(db, 64)
        ids = [*await waiting(db, "red", 6), *await waiting(db, "blue", 6, cost=70)]
        ids += await waiting(db, "blue", 3, priority=Priority.PRIORITY_BACKGROUND)
        places = {name: (await asked(operator, f"responses/{name}/why"))["position"] for name in ids}
        order = [message.response_id for message in await dispatch(db, "model.scripted") or ()]
        assert [places[name] for name in order] == list(range(1, len(ids) + 1))

    @pytest.mark.parametrize("most", [2, 100])
    async def test_work_in_windows_that_cannot_be_in_time_stands_behind_the_rest_of_its_flow(
        self, db: Database, operator: Api, monkeypatch: pytest.MonkeyPatch, most: int
    ) -> None:
        for name in ("MOST_OF_FLOW", "LEAST_OF_FLOW"):
            monkeypatch.setattr(response_facts, name, most)
        await with_slots(db, 10)
        late = await waiting(db, "a", 4, window=100.0)
        in_time = await waiting(db, "a", 3, window=3600.0)
        flow = "INSERT INTO flows (queue, project, priority, tag, step, run_seconds, run_tokens)"
        await changed(db, f"{flow} VALUES (:queue, 'a', :window, 0, 0, 300, 10)", queue=QUEUE, window=Priority.WINDOW)
        places = {each: (await asked(operator, f"responses/{each}/why"))["position"] for each in (*late, *in_time)}
        order = [message.response_id for message in await dispatch(db, QUEUE) or ()]
        assert order == in_time + late
        assert places == {each: order.index(each) + 1 for each in order}

    async def test_lines_in_files_of_batches_that_are_due_before_it_are_ahead(
        self, db: Database, operator: Api
    ) -> None:
        await with_slots(db, 1)
        await take(db, await waiting(db, "blue", 1))
        (ordinary,) = await waiting(db, "default", 1)
        ids = await waiting(db, "default", 3, window=7200.0)
        (other,) = await waiting(db, "red", 1, window=7200.0)
        for name, seconds, model in (("early", 3600.0, "scripted"), ("late", 86400.0, "scripted"), ("else", 60.0, "m")):
            async with db.begin() as connection:
                new = NewBatch(name, "default", None, "/v1/responses", "file_a", "24h", seconds)
                await batches.create(connection, new)
                await batches.validated(connection, name, 100, model)
                await batches.advance(connection, name, 10, 1)
        places = {each: (await asked(operator, f"responses/{each}/why")) for each in (ordinary, ids[2], other)}
        assert [each["position"] for each in places.values()] == [1, 95, pytest.approx(3, abs=1)]
        assert "about 92 responses of its own project and class" in places[ids[2]]["text"]
        assert "(about 90 lines of batches in files among them)" in places[ids[2]]["text"]
        assert not places[ids[2]]["position_is_exact"]
        assert "in files" not in places[other]["text"]

    async def test_a_waiting_response_tells_who_is_ahead_and_when_its_turn_comes(
        self, db: Database, operator: Api, mine: Tenant
    ) -> None:
        await with_slots(db, 1)
        ended = await waiting(db, "blue", 30)
        await take(db, ended)
        await changed(
            db,
            "UPDATE responses SET status = 'cancelled', worker = NULL, finished_at = now(), output = '[]',"
            " started_at = now() - interval '60 s'",
        )
        running = await waiting(db, "blue", 1)
        await take(db, running)
        ids = await waiting(db, mine.project, 3)
        found = await asked(operator, f"responses/{ids[2]}/why")
        assert (found["reason"], found["position"], found["position_is_exact"]) == ("behind_others", 3, True)
        assert found["expected_seconds"] == pytest.approx(3 / (30 / 60), rel=0.1), "all began within a minute"
        assert (found["project"], found["project_name"]) == (mine.project, "mine")
        assert "2 responses of its own project and class" in found["text"]
        assert (await asked(operator, f"responses/{ids[0]}/why"))["reason"] == "no_slot"

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

    async def test_what_is_paused_says_so_and_stands_in_nobody_s_way(
        self, db: Database, operator: Api, mine: Tenant
    ) -> None:
        await with_slots(db, 1)
        await take(db, await waiting(db, "blue", 1))
        (other,) = await waiting(db, mine.project, 1)
        ids = await waiting(db, "default", 1)
        assert (await asked(operator, f"responses/{ids[0]}/why"))["position"] == 2
        asks = {"model": "scripted", "project": mine.project, "reason": "a flood"}
        assert (await operator.client.post("/v1/operator/pauses", json=asks)).status_code == 200
        found = await asked(operator, f"responses/{other}/why")
        assert (found["reason"], found["position"]) == ("paused", None)
        assert "a flood" in found["text"]
        assert (await asked(operator, f"responses/{ids[0]}/why"))["position"] == 1
        (pause,) = (await asked(operator, "status"))["pauses"]
        assert (pause["model"], pause["project"]) == ("scripted", mine.project)

    async def test_calls_without_a_result_are_what_it_waits_for(self, db: Database, operator: Api) -> None:
        await alive(db, "w1")
        row = await claimed(db, "w1")
        call = {"name": "python", "arguments": "secret"}
        steps = [
            {"end": {"items": [0, 2], "usage": {}, "calls": {"0": call, "1": {**call, "name": "search"}}}},
            {"result": {"index": 0, "call": {"result": "secret"}}},
        ]
        insert = (
            "INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size, steps)"
            " VALUES (:id, 5000, 5000, 1, false, '', '', 0, CAST(:steps AS json))"
        )
        await changed(db, insert, id=row.id, steps=json.dumps(steps))
        found = await asked(operator, f"responses/{row.id}/why")
        assert found["reason"] == "in_tools"
        assert "search" in found["text"] and "python" not in found["text"] and "secret" not in found["text"]

    async def test_an_ended_response_tells_how(self, db: Database, operator: Api) -> None:
        row = await claimed(db)
        ended = (
            "UPDATE responses SET status = 'failed', worker = NULL, output = '[]', finished_at = now(),"
            " error = CAST(:error AS json) WHERE id = :id"
        )
        await changed(db, ended, id=row.id, error='{"code": "run_timeout", "message": "it ran too long"}')
        found = await asked(operator, f"responses/{row.id}/why")
        assert (found["reason"], found["status"], found["position"]) == ("failed", "failed", None)
        assert "run_timeout: it ran too long" in found["text"]

    @pytest.mark.parametrize("name", ["resp_nobody", "x" * 200, "%00"])
    async def test_what_is_not_there_is_a_404(self, operator: Api, name: str) -> None:
        answer = await operator.client.get(f"/v1/operator/responses/{name}/why")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "response_id")


async def test_a_worker_writes_events_while_operators_look(db: Database, operator: Api) -> None:
    """What a log has is in no answer."""
    row = await claimed(db, "w1", input="a secret prompt")
    Writer(row, "w1").begin()
    for path in ("status", "queue?by=key", "workers", f"responses/{row.id}/why"):
        answer = await operator.client.get(f"/v1/operator/{path}")
        assert answer.status_code == 200 and "secret" not in answer.text
