"""Bulk actions over HTTP and as commands: counted, asked for, noted in the audit log, carried out by maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.announcer import Announcer
from app.batches import expander
from app.maintenance.bulk import BulkWork
from app.operations import bulk
from app.queue.publisher import TaskQueue
from app.store.database import Connection, Database
from app.store.operations import actions
from app.store.operations.actions import ActionRow, NewAction
from app.store.paging import Page
from app.store.responses import endings
from app.store.roles.rights import MAINTENANCE
from app.store.tenants import audit
from app.store.tenants.audit import AuditFilter
from app.streaming.pubsub import PubSub
from tests.support.api import Api, settings_for
from tests.support.batches import Carried, created, line, lines_of
from tests.support.batches import ended as batch_ended
from tests.support.bulk import many_queued, statuses
from tests.support.commands import Shell
from tests.support.player import Player, ids
from tests.support.roles import as_role
from tests.support.rows import queued
from tests.support.tenants import Tenant, as_caller, tenant
from tests.support.waiting import until

ACTIONS = "/v1/operator/actions"


@pytest.fixture
async def acting(services: Any, db: Database, pubsub: PubSub, tmp_path: Any) -> AsyncIterator[None]:
    """Maintenance's part that carries actions out: it takes no worker for dead that the test plays."""
    settings = settings_for(services, tmp_path)
    queue = TaskQueue(settings)
    work = BulkWork(as_role(db, MAINTENANCE), Announcer(pubsub, queue), settings)

    async def act() -> None:
        while True:
            await work.carry_out()
            await asyncio.sleep(0.05)

    running = asyncio.create_task(act())
    yield
    running.cancel()
    await asyncio.wait([running])
    await work.close()
    await queue.close()


async def posted(operator: Api, **body: Any) -> dict[str, Any]:
    answer = await operator.client.post(ACTIONS, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ended(operator: Api, action_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        action: dict[str, Any] = (await operator.client.get(f"{ACTIONS}/{action_id}")).json()
        return None if action["state"] == "running" else action

    return await until(look, what="the end of the action")  # type: ignore[return-value]


async def entries(db: Database) -> list[Any]:
    found, _ = await audit.find_page(db, AuditFilter(), Page(100))
    return [entry for entry in found if entry.type.startswith(("responses.", "bulk_action."))]


async def test_an_action_is_counted_carried_out_and_noted(
    db: Database, operator: Api, acting: None, operator_key: str
) -> None:
    await many_queued(db, 20, metadata={"run": "a"})
    await many_queued(db, 5)
    only = {"metadata": {"run": "a"}}
    counted = await posted(operator, kind="cancel", filter=only, dry_run=True)
    assert (counted["matching"], counted["is_exact"], counted["batches"]) == (20, True, 0)
    assert await statuses(db) == {"queued": 25}
    action = await posted(operator, kind="cancel", filter=only, reason="a wrong prompt")
    assert (action["state"], action["matched"]) == ("running", 20)
    action = await ended(operator, action["id"])
    assert (action["state"], action["done"], action["reason"]) == ("completed", 20, "a wrong prompt")
    assert await statuses(db) == {"cancelled": 20, "queued": 5}
    (entry,) = await entries(db)
    assert (entry.type, entry.resource) == ("responses.cancelled", action["id"])
    assert entry.details == {"filter": only, "matched": 20, "reason": "a wrong prompt"}
    assert entry.actor is not None and entry.actor == action["actor"]
    listed = (await operator.client.get(ACTIONS)).json()
    assert [each["id"] for each in listed["data"]] == [action["id"]]


BAD_ACTIONS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "cancel", "filter": {"model": "scripted"}}, "reason"),
    ({"kind": "cancel", "reason": "x"}, "all"),
    ({"kind": "delete", "reason": "x", "all": True}, "kind"),
    ({"kind": "cancel", "reason": "x", "filter": {"status": ["completed"]}}, "filter.status"),
    ({"kind": "retry", "reason": "x", "filter": {"status": ["completed"]}}, "filter.status"),
    ({"kind": "cancel", "reason": "x", "filter": {"colour": "red"}}, "filter.colour"),
    ({"kind": "cancel", "reason": "x", "filter": {"batch": ""}}, "filter.batch"),
    ({"kind": "cancel", "reason": "x" * 501, "filter": {"model": "m"}}, "reason"),
]


async def test_bad_actions_are_refused_by_name(db: Database, operator: Api) -> None:
    await queued(db)
    for body, param in BAD_ACTIONS:
        answer = await operator.client.post(ACTIONS, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert await statuses(db) == {"queued": 1}
    assert await entries(db) == []


async def test_an_action_on_a_project_that_is_not_there_is_refused_and_one_is_found_by_its_name(
    db: Database, operator: Api, mine: Tenant
) -> None:
    await queued(db, mine.project)
    for dry_run in (True, False):
        for field in ("project", "batch"):
            body = {"kind": "cancel", "reason": "x", "filter": {field: "no such"}, "dry_run": dry_run}
            answer = await operator.client.post(ACTIONS, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, f"filter.{field}"), answer.text
    found = await posted(operator, kind="cancel", filter={"project": "mine"}, reason="x")
    assert found["matched"] == 1
    (entry,) = await entries(db)
    assert entry.project == mine.project


async def test_of_two_actions_at_the_same_time_the_bound_lets_one_through(
    db: Database, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    add = actions.add

    async def other_is_here() -> bool:
        return len(counted) == 2 or bool(await db.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted")))

    async def together(connection: Connection, new: NewAction) -> ActionRow:
        counted.append(new.id)
        await until(other_is_here, what="the other one has counted, or waits for its turn")
        return await add(connection, new)

    monkeypatch.setattr(bulk, "MAX_RUNNING", 1)
    monkeypatch.setattr(actions, "add", together)
    body = {"kind": "cancel", "all": True, "reason": "x"}
    answers = await asyncio.gather(*(operator.client.post(ACTIONS, json=body) for _ in range(2)))
    made, refused = sorted(answers, key=lambda answer: answer.status_code)
    assert (made.status_code, refused.status_code) == (200, 400)
    assert "1 actions are running, the limit" in refused.json()["error"]["message"]


async def test_an_action_can_be_stopped(db: Database, operator: Api) -> None:
    await many_queued(db, 3)
    action = await posted(operator, kind="cancel", all=True, reason="x")
    stopped = (await operator.client.post(f"{ACTIONS}/{action['id']}/cancel")).json()
    assert stopped["state"] == "cancelled"
    assert [entry.type for entry in await entries(db)] == ["responses.cancelled", "bulk_action.cancelled"]
    assert (await operator.client.post(f"{ACTIONS}/{action['id']}/cancel")).json()["state"] == "cancelled"
    assert (await operator.client.post(f"{ACTIONS}/action_none/cancel")).status_code == 404
    assert (await operator.client.get(f"{ACTIONS}/action_none")).status_code == 404


async def test_a_reader_of_a_cancelled_response_is_told(
    db: Database, api: Api, operator: Api, acting: None, mine: Tenant
) -> None:
    async with as_caller(api, mine) as caller, caller.streaming(background=True) as reader:
        first = await reader.event()
        assert first is not None
        await posted(operator, kind="cancel", filter={"ids": [first["response"]["id"]]}, reason="x")
        last = await reader.until_event("response.failed")
        assert last["response"]["status"] == "cancelled"


async def test_commands_cancel_and_retry(db: Database, remote: Shell, acting: None) -> None:
    ids = await many_queued(db, 10, metadata={"run": "a"})
    await many_queued(db, 2)
    ran = await remote.run("responses", "cancel", "--metadata", "run=a", "--reason", "wrong", "--yes", "--json")
    assert ran.status == 0, ran.err
    (action,) = ran.lines
    assert (action["state"], action["done"]) == ("completed", 10)
    ran = await remote.run("responses", "list", "--status", "cancelled", "--json")
    assert sorted(entry["id"] for entry in ran.lines) == sorted(ids)
    ran = await remote.run("responses", "retry", ids[0], "--yes")
    assert ran.status == 0, ran.err
    assert "retry 1 of 1" in ran.out
    ran = await remote.run("responses", "show", ids[0])
    assert ran.status == 0, ran.err
    assert "retried by resp_" in ran.out
    ran = await remote.run("responses", "actions", "--json")
    assert [each["kind"] for each in ran.lines] == ["retry", "cancel"]
    assert len(await entries(db)) == 2


async def test_commands_ask_before_they_act(db: Database, remote: Shell) -> None:
    await many_queued(db, 2)
    expected = {
        ("cancel", "--model", "scripted", "--reason", "x"): 1,
        ("cancel", "--all", "--reason", "x"): 1,
        ("cancel", "--model", "nobody", "--reason", "x", "--yes"): 0,
    }
    ran = await asyncio.gather(*(remote.run("responses", *arguments) for arguments in expected))
    assert [each.status for each in ran] == list(expected.values()), ran
    assert await statuses(db) == {"queued": 2}
    assert await entries(db) == []


async def test_tail_of_one_response_shows_its_events(db: Database, remote: Shell) -> None:
    response_id = await queued(db)
    await endings.cancel(db, response_id, None)
    ran = await remote.run("responses", "tail", response_id)
    assert ran.status == 0, ran.err
    assert [line.split()[-1] for line in ran.out.splitlines()] == [
        "response.created",
        "response.queued",
        "response.failed",
        "cancelled",
    ]


LINES = 20
AHEAD = 6
"""Lines of a batch that are responses."""


def as_client(api: Api, of: Tenant) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=of.key.secret, max_retries=0)


async def responses_of(db: Database, batch_id: str) -> list[tuple[str, str]]:
    found = await db.execute(text("SELECT id, status FROM responses WHERE batch_id = :id"), {"id": batch_id})
    return [(row.id, row.status) for row in found]


async def is_ahead(db: Database, *batch_ids: str) -> bool:
    """Whether as many of their lines are responses as may be."""
    return all([len(await responses_of(db, each)) == AHEAD for each in batch_ids])


async def test_a_cancel_of_a_project_ends_its_batches_with_what_is_in_their_files(
    db: Database,
    api: Api,
    operator: Api,
    acting: None,
    admin: Administration,
    mine: Tenant,
    carried: Carried,
    player: Player,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expander, "STEP_LINES", 3)
    monkeypatch.setattr(expander, "LINES_AHEAD", AHEAD)
    monkeypatch.setattr(expander, "AHEAD_OF_SLOT", 0)  # However many workers a player has at the moment.
    other = await tenant(admin, "other")
    sent = [line(str(number)) for number in range(LINES)]
    async with as_client(api, mine) as client, as_client(api, other) as theirs, carried.on():
        made, kept = await created(client, sent), await created(theirs, sent)
        await until(lambda: is_ahead(db, made.id, kept.id), what="both batches have lines ahead")
        begun, waiting = (await responses_of(db, made.id))[:2], await queued(db, mine.project)
        plays = [await player.begin(response_id) for response_id, _ in begun]
        only = {"project": mine.project}
        counted = await posted(operator, kind="cancel", filter=only, dry_run=True)
        figures = counted["matching"], counted["batches"], counted["lines_in_files"]
        assert figures == (AHEAD + 1, 1, LINES - AHEAD)
        action = await ended(operator, (await posted(operator, kind="cancel", filter=only, reason="x"))["id"])
        assert (action["state"], action["batches"]) == ("completed", 1)
        batch = await batch_ended(client, made.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.total) == ("cancelled", 0, LINES)
        errors = await lines_of(client, batch.error_file_id)
        assert [each["custom_id"] for each in errors] == [str(number) for number in range(LINES)]
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        assert {status for _, status in await responses_of(db, made.id)} == {"cancelled"}
        assert len(await responses_of(db, made.id)) == AHEAD, "no other line has become a response"
        assert waiting in await ids(db, "cancelled")
        assert not any([await play.write(play.say("more")) for play in plays]), "the fence holds"
        async with player.at_work("Hello"):
            batch = await batch_ended(theirs, kept.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", LINES)
    (entry,) = await entries(db)
    figures = entry.details["matched"], entry.details["batches"], entry.details["lines_in_files"]
    assert figures == (AHEAD + 1, 1, LINES - AHEAD)
