"""Lists of responses over HTTP: the operators' of all projects, and a client's own."""

from __future__ import annotations

from typing import Any

import openai

from app.access.administration import Administration
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.responses.new_rows import insert_waiting
from tests.support.api import MODEL, Api
from tests.support.rows import WORKER, Writer, claimed, new_batch, new_line, queued
from tests.support.tenants import Tenant, as_caller, tenant

SECRET = "a secret plan"


async def listed(api: Api, path: str = "/v1/responses", **query: Any) -> dict[str, Any]:
    answer = await api.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids_of(page: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in page["data"]]


async def test_a_client_sees_its_own_projects_responses_alone(
    db: Database, api: Api, admin: Administration, mine: Tenant
) -> None:
    other = await tenant(admin, "other")
    own = await queued(db, mine.project, metadata={"run": "a"})
    await queued(db, other.project)
    await queued(db, mine.project, store=False, background=False)
    unstored = await queued(db, mine.project, store=False, background=True)
    async with as_caller(api, mine) as caller:
        page = await listed(caller)
        assert ids_of(page) == [unstored, own]
        for each in (unstored, own):
            assert (await caller.get(each)).status_code == 200
        assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", unstored, own, False)
        entry = page["data"][1]
        assert (entry["object"], entry["status"], entry["metadata"]) == ("response.summary", "queued", {"run": "a"})
        assert "output" not in entry and "input" not in entry
        foreign = await queued(db, other.project)
        refused = await caller.client.get("/v1/responses", params={"after": foreign})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


async def test_a_list_has_no_prompt_and_no_output(db: Database, operator: Api) -> None:
    row = await claimed(db, input=SECRET, instructions=SECRET)
    writer = Writer(row)
    for entry in (writer.begin(), writer.say(SECRET, 1), writer.finish()):
        await logs.append(db, [entry])
    for path in (
        "/v1/operator/responses",
        f"/v1/operator/responses/{row.id}",
        f"/v1/operator/responses/{row.id}/events",
    ):
        answer = await operator.client.get(path)
        assert answer.status_code == 200, answer.text
        assert SECRET not in answer.text


FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"status": "queued"}, {"waits", "other"}),
    ({"status": ["queued", "failed"]}, {"waits", "failed", "other"}),
    ({"model": "scripted"}, {"waits", "failed", "cancelled"}),
    ({"model": "nobody"}, set()),
    ({"service_tier": "default"}, {"waits", "failed", "cancelled", "other"}),
    ({"service_tier": "flex"}, set()),
    ({"metadata[run]": "a"}, {"waits"}),
    ({"metadata[run]": "a", "metadata[line]": "2"}, set()),
    ({"metadata[run]": "a", "metadata[line]": "1"}, {"waits"}),
    ({"created_before": 1000}, set()),
    ({"created_after": 1000}, {"waits", "failed", "cancelled", "other"}),
]


async def test_lists_are_filtered(db: Database, api: Api, mine: Tenant) -> None:
    made = {
        "waits": await queued(db, mine.project, metadata={"run": "a", "line": "1"}),
        "failed": await queued(db, mine.project, metadata={"run": "b"}),
        "cancelled": await queued(db, mine.project),
        "other": await queued(db, mine.project, model="org/other-model"),
    }
    await endings.fail(db, made["failed"], "server_error", "broken")
    await endings.cancel(db, made["cancelled"], None)
    async with as_caller(api, mine) as caller:
        for query, expected in FILTERS:
            assert set(ids_of(await listed(caller, **query))) == {made[name] for name in expected}, query


BAD_QUERIES = [
    ({"colour": "red"}, "colour"),
    ({"project": "x"}, "project"),
    ({"status": "done"}, "status"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"limit": "101"}, "limit"),
    ({"order": "up"}, "order"),
    ({"after": "resp_none"}, "after"),
    ({"batch": "a\0"}, "batch"),
    ({"metadata": "run"}, "metadata"),
    ({"created_after": "today"}, "created_after"),
    ({"metadata[a\0]": "x"}, "metadata"),
    ({"model": ""}, "model"),
    ({"batch": ""}, "batch"),
]


async def test_bad_queries_are_refused_by_name(api: Api, mine: Tenant) -> None:
    async with as_caller(api, mine) as caller:
        for query, param in BAD_QUERIES:
            answer = await caller.client.get("/v1/responses", params=query)
            assert answer.status_code == 400, query
            assert param in answer.json()["error"]["param"]


async def test_the_lines_of_a_batch_are_listed_in_its_project_alone(
    db: Database, api: Api, operator: Api, admin: Administration, mine: Tenant
) -> None:
    other = await tenant(admin, "other")
    made: dict[str, list[str]] = {}
    for project, batch_id in ((mine.project, "batch_a"), (mine.project, "batch_b"), (other.project, "batch_c")):
        await new_batch(db, batch_id, project)
        new = [new_line(batch_id, number, project, background=True) for number in (1, 2)]
        async with db.begin() as connection:
            await insert_waiting(connection, new)
        made[batch_id] = [each.id for each in new]
        await queued(db, project)
    async with as_caller(api, mine) as caller:
        for batch_id in ("batch_a", "batch_b"):
            page = await listed(caller, batch=batch_id)
            assert (ids_of(page), page["has_more"]) == (made[batch_id][::-1], False)
            assert {entry["batch_id"] for entry in page["data"]} == {batch_id}
        for batch_id in ("batch_c", "batch_none"):
            refused = await caller.client.get("/v1/responses", params={"batch": batch_id})
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (404, "batch_not_found", "batch")
    path = "/v1/operator/responses"
    assert ids_of(await listed(operator, path, batch="batch_c", order="asc")) == made["batch_c"]
    assert ids_of(await listed(operator, path, batch="batch_c", project=mine.project)) == []


async def test_the_official_client_reads_a_list_page_by_page(db: Database, api: Api, mine: Tenant) -> None:
    made = [await queued(db, mine.project, metadata={"run": "a"}) for _ in range(5)]
    await queued(db, mine.project)
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=mine.key.secret) as client:
        found: list[str] = []
        query: dict[str, Any] = {"limit": 2, "order": "asc", "metadata": {"run": "a"}, "status": ["queued"]}
        while True:
            page: Any = await client.get("/responses", cast_to=object, options={"params": query})
            found += ids_of(page)
            if not page["has_more"]:
                break
            query["after"] = page["last_id"]
    assert found == made


async def test_an_operator_filters_by_project_key_and_error_code(
    db: Database, operator: Api, admin: Administration, mine: Tenant
) -> None:
    other = await tenant(admin, "other")
    own, foreign = await queued(db, mine.project), await queued(db, other.project)
    await endings.fail(db, foreign, "queue_timeout", "too late")
    path = "/v1/operator/responses"
    assert ids_of(await listed(operator, path)) == [foreign, own]
    assert ids_of(await listed(operator, path, project=mine.project)) == [own]
    assert ids_of(await listed(operator, path, error_code="queue_timeout")) == [foreign]
    assert ids_of(await listed(operator, path, project="other")) == [foreign], "its name"
    for query in ({"key": "key_none"}, {"project": "no such"}, {"batch": "batch_none"}):
        unknown = await operator.client.get(path, params=query)
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, *query)
    assert ids_of(await listed(operator, path, ids=[own, "resp_none"])) == [own]
    entry = (await listed(operator, path, project=other.project))["data"][0]
    assert (entry["project"], entry["project_name"], entry["error_code"], entry["error"]["message"]) == (
        other.project,
        "other",
        "queue_timeout",
        "too late",
    )


async def test_a_name_that_several_projects_have_is_refused_with_their_ids(
    operator: Api, admin: Administration, mine: Tenant
) -> None:
    twins = [await tenant(admin, "twin") for _ in range(2)]
    answer = await operator.client.get("/v1/operator/responses", params={"project": "twin"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "project")
    assert all(each.project in answer.json()["error"]["message"] for each in twins)


async def test_the_responses_of_a_request_are_found_by_its_id(api: Api, operator: Api, mine: Tenant) -> None:
    made = {}
    async with as_caller(api, mine) as caller:
        for name in ("job-7", "job-8"):
            body = {"model": MODEL, "input": SECRET, "background": True}
            answer = await caller.client.post("/v1/responses", json=body, headers={"x-request-id": name})
            made[name] = answer.json()["id"]
    assert ids_of(await listed(operator, "/v1/operator/responses", request_id="job-7")) == [made["job-7"]]
    assert ids_of(await listed(operator, "/v1/operator/responses", request_id="job")) == []


async def test_a_response_tells_its_story(db: Database, operator: Api) -> None:
    row = await claimed(db)
    writer = Writer(row)
    for entry in (writer.begin(7), writer.say("Hi", 1, 2, 3), writer.finish()):
        await logs.append(db, [entry])
    story = (await operator.client.get(f"/v1/operator/responses/{row.id}")).json()
    assert [moment["what"] for moment in story["moments"]] == ["accepted", "claimed", "completed"]
    assert (story["moments"][1]["attempt"], story["moments"][1]["worker"]) == (1, WORKER)
    accepted, ran = story["attempts"]
    assert (accepted["attempt"], accepted["last_event"]) == (0, 1)
    assert (ran["attempt"], ran["first_event"], ran["tokens"], ran["input_tokens"]) == (1, 2, 3, 7)
    events = (await operator.client.get(f"/v1/operator/responses/{row.id}/events", params={"starting_after": 1})).json()
    assert events["data"][0]["type"] == "response.in_progress"
    assert events["data"][-1]["type"] == "response.completed"
    assert (await operator.client.get("/v1/operator/responses/resp_none")).status_code == 404
