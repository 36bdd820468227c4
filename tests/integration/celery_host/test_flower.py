"""What operators see and do in Flower: its HTTP API, with a real worker whose runner only pretends."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from app.queue.message import TASK, Message, Priority
from app.queue.publisher import TaskQueue
from config.settings import load_settings
from tests.support.celery_processes import QUEUE, Flower, Worker, own_database
from tests.support.queue_app import SECRET, STORE
from tests.support.waiting import PATIENCE_SECONDS, until_sync

AUTH = ("admin", "secret")
NOBODY = httpx.Auth()


class Desk:
    """An operator: uses Flower, and reads the rows."""

    def __init__(self, url: str, flower: Flower) -> None:
        self.settings = load_settings(REDIS_URL=url)
        self.rows = redis.Redis.from_url(url.removesuffix("/7") + f"/{STORE}", decode_responses=True)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{flower.port}", auth=AUTH, timeout=PATIENCE_SECONDS)

    def send(self, *ids: str) -> None:
        async def all_of_them() -> None:
            queue = TaskQueue(self.settings)
            for response_id in ids:
                await queue.enqueue(Message(response_id, "demo", QUEUE, Priority.FLEX, "team-a", True, 2, "w1"))
            await queue.close()

        asyncio.run(all_of_them())

    def task(self, response_id: str) -> dict[str, Any]:
        reply = self.http.get(f"/api/task/info/{response_id}")
        task: dict[str, Any] = reply.json() if reply.status_code == 200 else {}
        return task

    def wait_for_state(self, state: str, *ids: str) -> None:
        def all_do() -> bool:
            return all(self.task(i).get("state") == state for i in ids)

        until_sync(all_do, what=lambda: f"{state} for {ids}: {[self.task(i).get('state') for i in ids]}")

    def wait_for_log(self, *lines: str) -> None:
        until_sync(lambda: set(lines) <= set(self.rows.lrange("log", 0, -1)))

    def wait_for_cancelled(self, response_id: str) -> None:
        until_sync(lambda: self.rows.sismember("cancelled", response_id), what=response_id)


@pytest.fixture(scope="module")
def desk(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Flower, and one worker with two slots."""
    folder = tmp_path_factory.mktemp("flower")
    url = own_database(redis_url)
    for database in (url, url.removesuffix("/7") + f"/{STORE}"):
        redis.Redis.from_url(database).flushdb()
    flower = Flower(url, folder, ":".join(AUTH))
    worker = Worker(url, folder, concurrency=2)
    desk = Desk(url, flower)
    try:
        worker.ready()
        until_sync(lambda: "Visit me" in flower.text or flower.process.poll() is not None)
        # Flower receives events only from some moment after its start: it must have received one of the worker.
        until_sync(lambda: "w1@test" in desk.http.get("/api/workers", params={"refresh": "1"}).json())
        yield desk
    finally:
        desk.http.close()
        desk.rows.close()
        worker.kill()
        flower.kill()


def test_flower_refuses_everybody_without_the_password(desk: Desk) -> None:
    for path in ("/", "/tasks", "/api/tasks", "/api/workers", "/metrics"):
        assert desk.http.get(path, auth=NOBODY).status_code == 401, path
    assert "flower_" in desk.http.get("/metrics").text
    wrong = desk.http.post("/api/task/revoke/hold-1", auth=("admin", "wrong"))
    assert wrong.status_code == 401


def test_flower_answers_to_its_own_host_names_alone(desk: Desk) -> None:
    for path in ("/", "/api/workers", "/metrics", "/static/css/flower.css", "/nothing"):
        for host in ("stranger.example", "stranger.example:5555", ""):
            reply = desk.http.get(path, headers={"Host": host})
            assert reply.status_code == 421, (path, host)
        assert "LONGHAUL_ALLOWED_HOSTS" in reply.text
    assert desk.http.post("/api/task/revoke/x", headers={"Host": "stranger.example"}).status_code == 421
    assert desk.http.get("/api/workers", headers={"Host": "localhost:5555"}).status_code == 200
    assert desk.http.get("/healthcheck", headers={"Host": "probe"}, auth=NOBODY).text == "OK"


def test_flowers_pages_open(desk: Desk) -> None:
    desk.send("ok-page")
    desk.wait_for_state("SUCCESS", "ok-page")
    for path in ("/", "/workers", "/tasks", "/broker", "/worker/w1@test", "/task/ok-page", "/metrics", "/healthcheck"):
        reply = desk.http.get(path)
        assert reply.status_code == 200, path


@pytest.mark.parametrize(
    ("response_id", "state"),
    [
        ("ok-1", "SUCCESS"),
        ("short-1", "SUCCESS"),
        ("fail-1", "FAILURE"),
        ("bug-1", "FAILURE"),
        ("gone-1", "REVOKED"),
        ("dup-1", "STARTED"),
        ("fenced-1", "STARTED"),
    ],
)
def test_each_outcome_has_its_state_in_flower(desk: Desk, response_id: str, state: str) -> None:
    desk.send(response_id)
    desk.wait_for_state(state, response_id)
    desk.send(f"ok-after-{response_id}")
    desk.wait_for_state("SUCCESS", f"ok-after-{response_id}")
    desk.wait_for_state(state, response_id)


def test_flower_shows_what_a_task_is_and_finds_it_by_that(desk: Desk) -> None:
    desk.send("ok-named")
    desk.wait_for_state("SUCCESS", "ok-named")
    task = desk.task("ok-named")
    assert (task["uuid"], task["name"]) == ("ok-named", TASK)
    assert ast.literal_eval(task["kwargs"]) == {"project": "team-a", "model": "demo"}
    found = desk.http.get("/api/tasks", params={"search": "kwargs:project=team-a"}).json()
    assert "ok-named" in found
    assert desk.http.get("/api/tasks", params={"search": "kwargs:project=team-b"}).json() == {}
    assert task["args"] == "flex, background, stream, attempt 2"
    assert task["result"] == "None"


def test_flower_shows_the_code_and_message_of_a_failure_and_nothing_of_the_prompt(desk: Desk) -> None:
    desk.send("fail-shown", "bug-shown")
    desk.wait_for_state("FAILURE", "fail-shown", "bug-shown")
    assert desk.task("fail-shown")["exception"] == "ResponseFailed('server_error', 'it went wrong')"
    assert desk.task("bug-shown")["exception"] == "ResponseFailed('server_error', 'ValueError')"
    for response_id in ("fail-shown", "bug-shown"):
        assert SECRET not in str(desk.task(response_id))
        assert SECRET not in desk.http.get(f"/task/{response_id}").text


def test_a_duplicate_does_not_change_a_final_state(desk: Desk) -> None:
    desk.send("hold-dup")
    desk.wait_for_log("start hold-dup")
    desk.send("hold-dup")
    until_sync(lambda: desk.rows.lrange("log", 0, -1).count("start hold-dup") == 2)
    desk.send("ok-behind")
    desk.wait_for_state("SUCCESS", "ok-behind")
    assert desk.task("hold-dup")["state"] == "STARTED"
    desk.http.post("/api/task/revoke/hold-dup?terminate=true")
    desk.wait_for_state("REVOKED", "hold-dup")


@pytest.mark.parametrize("terminate", ["true", "false"])
def test_revoke_and_terminate_end_a_running_response(desk: Desk, terminate: str) -> None:
    response_id = f"hold-{terminate}"
    desk.send(response_id)
    desk.wait_for_log(f"start {response_id}")
    reply = desk.http.post(f"/api/task/revoke/{response_id}?terminate={terminate}")
    assert reply.status_code == 200
    desk.wait_for_log(f"revoked {response_id}")
    desk.wait_for_cancelled(response_id)
    desk.wait_for_state("REVOKED", response_id)


@pytest.mark.parametrize("terminate", ["true", "false"])
def test_revoke_and_terminate_end_a_queued_response_while_every_slot_is_taken(desk: Desk, terminate: str) -> None:
    full = [f"hold-full-{terminate}-{n}" for n in range(2)]
    desk.send(*full)
    desk.wait_for_log(*(f"start {i}" for i in full))
    queued = f"ok-queued-{terminate}"
    desk.send(queued)
    desk.wait_for_state("PENDING", queued)
    desk.http.post(f"/api/task/revoke/{queued}?terminate={terminate}")
    desk.wait_for_cancelled(queued)
    desk.wait_for_state("REVOKED", queued)
    for response_id in full:
        desk.http.post(f"/api/task/revoke/{response_id}?terminate=true")
    desk.wait_for_state("REVOKED", *full)
    desk.send(f"ok-behind-{terminate}")
    desk.wait_for_state("SUCCESS", f"ok-behind-{terminate}")
    assert f"start {queued}" not in desk.rows.lrange("log", 0, -1)
    assert desk.task(queued)["state"] == "REVOKED"


def test_flowers_buttons_grow_and_shrink_the_pool(desk: Desk) -> None:
    for button in ("grow", "shrink"):
        reply = desk.http.post(f"/api/worker/pool/{button}/w1@test", data={"n": 1})
        assert reply.status_code == 200, reply.text
    stats = desk.http.get("/api/workers", params={"refresh": "1", "workername": "w1@test"}).json()["w1@test"]["stats"]
    assert stats["pool"]["max-concurrency"] == 2
    assert stats["pool"]["implementation"] == "workers.celery_host.pool:TaskPool"
    reply = desk.http.post("/api/worker/pool/shrink/w1@test", data={"n": 2})
    assert reply.status_code == 403
    assert "one must stay" in reply.text
