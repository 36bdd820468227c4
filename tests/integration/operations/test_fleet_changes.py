"""Draining workers and pausing models: routes, commands, the audit log."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.operations.service import OperatorService
from app.store.database import Database
from app.store.operations.snapshot import Snapshot
from app.store.tables import DEFAULT_PROJECT
from tests.support.api import MODEL, Api
from tests.support.commands import Shell
from tests.support.rows import alive, claimed
from tests.support.tenants import as_caller, tenant

QUEUE = f"model.{MODEL}"


async def audited(db: Database) -> list[tuple[str, str, Any]]:
    statement = "SELECT type, resource, details FROM audit_logs WHERE type ~ '^(worker|model)' ORDER BY effective_at"
    return [(row.type, row.resource, row.details["reason"]) for row in await db.execute(text(statement))]


async def call(api: Api, method: str, path: str, **request: Any) -> httpx.Response:
    return await api.client.request(method, f"/v1/operator/{path}", **request)


async def test_a_worker_is_drained_and_given_back_once_however_often_it_is_asked_for(
    db: Database, operator: Api
) -> None:
    await alive(db, "w@host")
    await claimed(db, "w@host")
    for reason in ("a bad fan", "again"):
        answer = await call(operator, "POST", "workers/w@host/drain", json={"reason": reason})
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert (shown["state"], shown["running"], shown["drain_reason"]) == ("draining", 1, "a bad fan")
    await db.execute(
        text("UPDATE responses SET status = 'cancelled', worker = NULL, finished_at = now(), output = '[]'")
    )
    (listed,) = (await call(operator, "GET", "workers")).json()["data"]
    assert listed["state"] == "drained"
    for _ in range(2):
        shown = (await call(operator, "POST", "workers/w@host/undrain")).json()
        assert (shown["state"], shown["draining_since"]) == ("ready", None)
    assert await audited(db) == [("worker.drained", "w@host", "a bad fan"), ("worker.undrained", "w@host", None)]


async def test_a_model_is_paused_and_resumed_once_however_often_it_is_asked_for(db: Database, operator: Api) -> None:
    for reason in ("a bad release", "again"):
        answer = await call(operator, "POST", "pauses", json={"model": MODEL, "reason": reason})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["project"], answer.json()["reason"]) == (None, "a bad release")
    alone = await call(operator, "POST", "pauses", json={"model": MODEL, "project": DEFAULT_PROJECT})
    assert (alone.json()["queue"], alone.json()["project"]) == (QUEUE, DEFAULT_PROJECT)
    assert len((await call(operator, "GET", "pauses")).json()["data"]) == 2
    for _ in range(2):
        left = (await call(operator, "DELETE", "pauses", params={"model": MODEL, "reason": "mended"})).json()["data"]
        assert [each["project"] for each in left] == [DEFAULT_PROJECT]
    resumed = await call(operator, "DELETE", "pauses", params={"model": MODEL, "project": DEFAULT_PROJECT})
    assert resumed.json()["data"] == []
    assert await audited(db) == [
        ("model.paused", MODEL, "a bad release"),
        ("model.paused", MODEL, None),
        ("model.resumed", MODEL, "mended"),
        ("model.resumed", MODEL, None),
    ]


REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "workers/nobody/drain", {}, 404, "There is no worker 'nobody'; the workers are: w1."),
    ("POST", "workers/nobody/undrain", {}, 404, "the workers are: w1"),
    ("POST", "workers/w1/drain", {"json": {"reason": ""}}, 400, "reason"),
    ("POST", "workers/w1/drain", {"json": {"force": True}}, 400, "force"),
    ("POST", "pauses", {"json": {"model": "none"}}, 404, "There is no model 'none'; the models are: org/other-model, "),
    ("POST", "pauses", {"json": {"model": MODEL, "project": "p"}}, 404, "There is no project 'p'."),
    ("POST", "pauses", {"json": {"reason": "x"}}, 400, "model"),
    ("DELETE", "pauses", {}, 400, "model"),
    ("DELETE", "pauses", {"params": {"model": "none"}}, 404, "the models are"),
    ("DELETE", "pauses", {"params": {"model": MODEL, "project": "a\0"}}, 400, "'project': the character U+0000"),
]


async def test_what_is_not_there_is_named_with_what_is(db: Database, operator: Api) -> None:
    await alive(db, "w1")
    for method, path, request, status, said in REFUSED:
        answer = await call(operator, method, path, **request)
        assert answer.status_code == status, answer.text
        assert said in answer.json()["error"]["message"]
    assert await audited(db) == []


async def test_a_paused_project_is_refused_in_the_foreground_and_accepted_in_the_background(
    db: Database, api: Api, operator: Api, admin: Administration
) -> None:
    paused, other = await tenant(admin, "a"), await tenant(admin, "b")
    await call(operator, "POST", "pauses", json={"model": MODEL, "project": paused.project})
    async with as_caller(api, paused.key) as calling:
        for stream in (False, True):
            refused = await calling.post(input="/say Hi", stream=stream)
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "model_paused"
            assert int(refused.headers["retry-after"]) >= 10
        accepted = await calling.post(input="/say Hi", background=True)
        assert (accepted.status_code, accepted.json()["status"]) == (200, "queued")
    async with as_caller(api, other.key) as calling:
        assert (await calling.post(input="/say Hi", background=True)).status_code == 200
    statement = "SELECT project, sent_at IS NOT NULL AS is_sent FROM responses"
    assert {row.project for row in await db.execute(text(statement))} == {paused.project, other.project}


async def test_commands_pause_and_resume(db: Database, remote: Shell) -> None:
    await alive(db, "w", model=MODEL)
    paused = await remote.run("pause", MODEL, "--reason", "a bad release")
    assert (paused.status, paused.out) == (0, f"{MODEL} is paused; end it by: longhaul resume {MODEL}\n"), paused.err
    assert (await remote.run("pause", MODEL, "--project", DEFAULT_PROJECT)).status == 0
    listed = (await remote.run("pauses", "--json")).lines
    assert [(each["model"], each["project"]) for each in listed] == [(MODEL, None), (MODEL, DEFAULT_PROJECT)]
    resumed = await remote.run("resume", MODEL)
    assert resumed.out.splitlines() == [
        f"{MODEL} is resumed",
        f"{MODEL} for project {DEFAULT_PROJECT} is still paused; "
        f"end it by: longhaul resume {MODEL} --project {DEFAULT_PROJECT}",
    ]


async def test_a_worker_that_goes_after_it_is_drained_is_not_found_and_the_answer_says_that_the_drain_holds(
    db: Database, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(_: OperatorService) -> Snapshot:
        return Snapshot((), ())

    await alive(db, "w@host")
    monkeypatch.setattr(OperatorService, "snapshot", nobody)
    answer = await call(operator, "POST", "workers/w@host/drain")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "The worker 'w@host' has gone; the change holds if it comes back.",
    )
    assert await audited(db) == [("worker.drained", "w@host", None)]
