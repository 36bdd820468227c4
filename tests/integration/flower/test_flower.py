"""What operators see and do in Flower, beside real workers with the scripted engine: pages, calls, a browser."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from app.queue.message import TASK
from tests.faults.member import Role
from tests.faults.proxy import Mode
from tests.support.browser import browser
from tests.support.flower_client import FlowerClient, another_flower, at_flower
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOBODY = httpx.Auth()
LONG, SHORT = "/count 3000", "/say Hello"
SECRET = "a secret prompt"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def flower() -> AsyncIterator[FlowerClient]:
    async with at_flower() as flower:
        yield flower


async def test_flower_refuses_everybody_without_the_password(flower: FlowerClient) -> None:
    for path in ("/", "/tasks", "/api/tasks", "/api/workers", "/metrics"):
        assert (await flower.http.get(path, auth=NOBODY)).status_code == 401, path
    assert "flower_" in (await flower.http.get("/metrics")).text
    wrong = await flower.http.post("/api/task/revoke/resp_1", auth=(flower.auth[0], "wrong"))
    assert wrong.status_code == 401


async def test_flower_answers_to_its_own_host_names_alone(flower: FlowerClient) -> None:
    for path in ("/", "/api/workers", "/metrics", "/static/css/flower.css", "/nothing", "/task/healthcheck"):
        for host in ("stranger.example", "stranger.example:5555", ""):
            reply = await flower.http.get(path, headers={"Host": host})
            assert reply.status_code == 421, (path, host)
        assert "LONGHAUL_ALLOWED_HOSTS" in reply.text
    stranger = await flower.http.post("/api/task/revoke/x", headers={"Host": "stranger.example"})
    assert stranger.status_code == 421
    assert (await flower.http.get("/api/workers", headers={"Host": "localhost:5555"})).status_code == 200
    assert (await flower.http.get("/healthcheck", headers={"Host": "probe"}, auth=NOBODY)).text == "OK"


async def test_flowers_pages_show_what_a_task_is_and_find_it_by_that(flower: FlowerClient) -> None:
    response_id = await flower.send(SHORT, service_tier="flex")
    task = await flower.wait_for(response_id, state="SUCCESS")
    worker = task["worker"]
    for path in ("/", "/workers", "/tasks", "/broker", f"/worker/{worker}", f"/task/{response_id}", "/metrics"):
        assert (await flower.http.get(path)).status_code == 200, path
    assert (task["uuid"], task["name"]) == (response_id, TASK)
    assert ast.literal_eval(task["kwargs"]) == {"project": "default", "model": "scripted"}
    assert task["args"] == "flex, background, attempt 1"
    found = (await flower.http.get("/api/tasks", params={"search": "kwargs:project=default"})).json()
    assert response_id in found
    assert (await flower.http.get("/api/tasks", params={"search": "kwargs:project=team-b"})).json() == {}


async def test_flower_shows_the_code_and_message_of_a_failure_and_nothing_of_the_prompt(flower: FlowerClient) -> None:
    response_id = await flower.send(f"{SECRET} /fail 3", instructions=SECRET)
    failing = await flower.send("/fail 3", instructions=SECRET)
    await flower.wait_for(response_id, state="SUCCESS")
    task = await flower.wait_for(failing, state="FAILURE")
    assert task["exception"].startswith("ResponseFailed('server_error', ")
    for each in (response_id, failing):
        assert SECRET not in str(await flower.task(each))
        assert SECRET not in (await flower.http.get(f"/task/{each}")).text


@pytest.mark.parametrize("terminate", ["true", "false"])
async def test_revoke_and_terminate_cancel_a_response_and_note_it_in_the_audit_log(
    flower: FlowerClient, terminate: str
) -> None:
    response_id = await flower.send(LONG)
    await flower.wait_for(response_id, state="STARTED")
    reply = await flower.http.post(f"/api/task/revoke/{response_id}", params={"terminate": terminate})
    assert (reply.status_code, await flower.status(response_id)) == (200, "cancelled")
    await flower.wait_for(response_id, state="REVOKED")
    entries = await flower.rows("SELECT * FROM audit_logs WHERE resource = :id", id=response_id)
    assert [(each.type, each.actor, each.project, each.address) for each in entries] == [
        ("response.cancelled", "flower", "default", "127.0.0.1")
    ]
    again = await flower.http.post(f"/api/task/revoke/{response_id}")
    assert (again.status_code, again.text) == (409, f"{response_id} is cancelled already.")
    unknown = await flower.http.post("/api/task/revoke/resp_unknown")
    assert (unknown.status_code, unknown.text) == (409, "There is no response resp_unknown.")


async def test_a_worker_stops_by_flowers_button(flower: FlowerClient) -> None:
    worker = (await flower.rows("SELECT node FROM workers WHERE lease_until > now() LIMIT 1"))[0].node
    assert (await flower.http.post(f"/api/worker/shutdown/{worker}")).status_code == 200
    await until(lambda: flower.rows("SELECT 1 WHERE NOT EXISTS (SELECT FROM workers WHERE node = :id)", id=worker))
    await flower.fleet.wait_until_whole(60.0)
    entries = await flower.rows(
        "SELECT type, actor FROM audit_logs WHERE resource = :id ORDER BY effective_at", id=worker
    )
    assert [each.type for each in entries] == ["worker.stopped"]
    assert {each.actor for each in entries} == {"flower"}


CALLS = (
    "/api/worker/pool/grow/{worker}",
    "/api/worker/pool/shrink/{worker}",
    "/api/worker/pool/restart/{worker}",
    "/api/worker/pool/autoscale/{worker}?min=1&max=1",
    "/api/worker/queue/add-consumer/{worker}?queue=theirs",
    "/api/worker/queue/cancel-consumer/{worker}?queue=model.scripted",
    "/api/task/apply/responses.generate",
    "/api/task/async-apply/responses.generate",
    "/api/task/send-task/responses.generate",
    "/api/task/abort/resp_1",
    "/api/task/timeout/responses.generate?workername={worker}",
    "/api/task/rate-limit/responses.generate?workername={worker}",
)
OURS = (
    "/api/task/revoke/{response}",
    "/api/worker/shutdown/{worker}",
)


async def test_calls_that_change_what_longhaul_does_not_have_are_refused(flower: FlowerClient) -> None:
    for path in CALLS:
        reply = await flower.http.post(path.format(worker="w"))
        assert (reply.status_code, reply.text[:28]) == (403, "Longhaul has no such control"), path


async def test_a_new_flower_shows_what_is_unfinished_and_a_read_only_one_changes_nothing(
    flower: FlowerClient, tmp_path: Path
) -> None:
    """It remembers nothing, as one that was killed."""
    response_id = await flower.send(LONG)
    task = await flower.wait_for(response_id, state="STARTED")
    async with another_flower(flower.fleet, tmp_path, FLOWER_READ_ONLY="true") as reader:
        seen = await reader.wait_for(response_id, state="STARTED", worker=task["worker"])
        assert (seen["args"], seen["kwargs"]) == (task["args"], task["kwargs"])
        for path in (*CALLS, *OURS):
            reply = await reader.http.post(path.format(worker=task["worker"], response=response_id))
            assert reply.status_code == 403, path
        page = (await reader.http.get(f"/task/{response_id}")).text
        assert response_id in page and "task-terminate" not in page
        assert "Shut Down" not in (await reader.http.get(f"/worker/{task['worker']}")).text
    assert await flower.status(response_id) == "in_progress"
    await flower.http.post(f"/api/task/revoke/{response_id}")


async def test_a_person_terminates_a_response_in_a_browser_and_sees_it_cancelled(
    flower: FlowerClient, tmp_path: Path
) -> None:
    response_id = await flower.send(LONG)
    await flower.wait_for(response_id, state="STARTED")
    async with browser(tmp_path / "profile") as page:
        await page.sign_in(*flower.auth)
        await page.open(f"{flower.url}/tasks")
        await page.wait_for(response_id, "#tasks-table")
        await page.open(f"{flower.url}/task/{response_id}")
        await page.wait_for("STARTED")
        await page.click("#task-terminate")
        await page.wait_for(f"Cancelled '{response_id}'", "#toast-container")
        assert await flower.status(response_id) == "cancelled"
        await page.wait_for("REVOKED")  # the page loads itself again


async def test_without_postgres_flower_shows_events_and_says_that_it_cannot_cancel(flower: FlowerClient) -> None:
    response_id = await flower.send(LONG)
    await flower.wait_for(response_id, state="STARTED")
    (member,) = flower.fleet.of(Role.FLOWER)
    member.postgres.set(Mode.CUT)
    try:
        refused = await flower.http.post(f"/api/task/revoke/{response_id}")
        assert (refused.status_code, refused.text[:20]) == (503, "Postgres is away, wh")
        await flower.wait_for(await flower.send(SHORT), state="SUCCESS")
    finally:
        member.postgres.set(Mode.OPEN)
    assert await flower.status(response_id) == "in_progress"
    await until(lambda: flower.cancels(response_id), what="Flower finds Postgres again")
    assert await flower.status(response_id) == "cancelled"
