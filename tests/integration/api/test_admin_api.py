"""OpenAI's admin API through the official client, whose types are the contract: it checks every answer by them."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from sqlalchemy import text

from app.access import changes
from app.access.administration import Administration
from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES, Scope
from app.access.new_keys import CreatedKey
from app.api.admin_objects import COMMAND_LINE_ACTOR
from app.protocol.limits import ALL_MODELS
from app.protocol.requests.bodies.organization import NO_LIMIT
from app.store.database import Database
from tests.integration.api.common import tooled
from tests.support.api import MODEL, Api
from tests.support.logs import row_of
from tests.support.player import Player
from tests.support.tenants import as_caller, tenant
from tests.support.waiting import until

OTHER_MODEL = "org/other-model"
EXPIRES = "expires_in_seconds"
ALONE = "create_service_account_only"
SETTINGS = {"auth": "keys"}
MODELS = tooled()


@pytest.fixture
async def admin_key(admin: Administration) -> CreatedKey:
    return await admin.create_key(None, "first", OPERATOR_SCOPES)


@pytest.fixture
async def client(api: Api, admin_key: CreatedKey) -> AsyncIterator[AsyncOpenAI]:
    url, key = f"{api.url}/v1", admin_key.secret
    async with AsyncOpenAI(admin_api_key=key, base_url=url, max_retries=0, _strict_response_validation=True) as strict:
        yield strict


@pytest.fixture
async def project(client: AsyncOpenAI) -> str:
    return (await client.admin.organization.projects.create(name="red")).id


async def works(api: Api, secret: str, status: int = 200) -> bool:
    async with as_caller(api, secret) as calling:
        return (await calling.client.get("/v1/models")).status_code == status


async def stops_working(api: Api, secret: str) -> None:
    await until(lambda: works(api, secret, 401))


async def jobs(client: AsyncOpenAI, project: str, **more: Any) -> tuple[Any, Any]:
    """A new service account and its key."""
    account = await client.admin.organization.projects.service_accounts.create(project, name="jobs", **more)
    assert account.api_key is not None
    return account, account.api_key


async def audited(client: AsyncOpenAI, **query: Any) -> list[str]:
    """Returns the types of the entries, the oldest first."""
    return [entry.type async for entry in client.admin.organization.audit_logs.list(**query)][::-1]


class TestProjects:
    async def test_a_project_is_made_renamed_and_archived_and_then_gets_nothing_new(
        self, client: AsyncOpenAI, api: Api
    ) -> None:
        projects = client.admin.organization.projects
        made = await projects.create(name="red")
        assert (made.name, made.status, made.archived_at) == ("red", "active", None)
        assert await projects.retrieve(made.id) == made
        assert (await projects.update(made.id, name="rouge")).name == "rouge"
        _, key = await jobs(client, made.id)
        assert await works(api, key.value)
        gone = await projects.archive(made.id)
        assert gone.status == "archived" and gone.archived_at is not None
        await stops_working(api, key.value)
        for attempt in (
            projects.update(made.id, name="again"),
            projects.service_accounts.create(made.id, name="jobs"),
            projects.model_permissions.delete(made.id),
        ):
            with pytest.raises(openai.BadRequestError, match="is archived"):
                await attempt
        with pytest.raises(openai.BadRequestError, match="cannot be archived"):
            await projects.archive("default")
        assert [each.id async for each in projects.list()] == ["default"]
        assert [each.id async for each in projects.list(include_archived=True)] == ["default", made.id]

    async def test_conversation_days_and_an_erasure_are_set_and_shown(self, client: AsyncOpenAI, project: str) -> None:
        path = f"/organization/projects/{project}"
        shown: Any = await client.post(path, cast_to=object, body={"conversation_days": 30})
        assert (shown["conversation_days"], shown["stored_bytes"], shown["erase_at"]) == (30, 0, None)
        assert (await client.post(path, cast_to=object, body={"conversation_days": 0}))["conversation_days"] is None
        for wrong, body in ((path, {"conversation_days": 4000}), (f"{path}/erase", {"after_days": -1})):
            with pytest.raises(openai.BadRequestError, match=f"'{next(iter(body))}'"):
                await client.post(wrong, cast_to=object, body=body)
        erased: Any = await client.post(f"{path}/erase", cast_to=object)
        assert erased["status"] == "archived" and erased["erase_at"] >= erased["archived_at"]
        assert (await audited(client))[-2:] == ["project.archived", "project.updated"]


class TestServiceAccounts:
    async def test_it_is_made_listed_renamed_and_deleted_with_its_keys(
        self, client: AsyncOpenAI, api: Api, project: str, db: Database
    ) -> None:
        projects = client.admin.organization.projects
        accounts = projects.service_accounts
        account, key = await jobs(client, project, expires_in_seconds=1000)
        assert account.role == "member" and key.expires_at is not None
        async with AsyncOpenAI(api_key=key.value, base_url=f"{api.url}/v1", max_retries=0) as tenant_:
            made = await tenant_.responses.create(model=MODEL, input="Hello!", background=True)
        assert (await row_of(db, made.id)).project == project
        more = await accounts.api_keys.create(account.id, project_id=project, scopes=["api.all.read"])
        assert more.name == "jobs"
        assert (await accounts.update(account.id, project_id=project, name="work", role="member")).name == "work"
        listed = [each.id async for each in accounts.list(project, limit=1)]
        assert listed == [account.id] == [(await accounts.retrieve(account.id, project_id=project)).id]
        assert (await accounts.delete(account.id, project_id=project)).deleted
        for secret in (key.value, more.value):
            await stops_working(api, secret)
        with pytest.raises(openai.NotFoundError):
            await accounts.retrieve(account.id, project_id=project)
        assert [each async for each in projects.api_keys.list(project)] == []

    async def test_it_is_there_as_long_as_one_of_its_keys(self, client: AsyncOpenAI, project: str) -> None:
        projects = client.admin.organization.projects
        first, second = [(await jobs(client, project))[0] for _ in range(2)]
        listed = await projects.service_accounts.list(project, limit=1, after=first.id)
        assert [each.id for each in listed.data] == [second.id]
        for key in [each async for each in projects.api_keys.list(project)]:
            if key.owner.service_account is not None and key.owner.service_account.id == first.id:
                await projects.api_keys.delete(key.id, project_id=project)
        assert [each.id async for each in projects.service_accounts.list(project)] == [second.id]
        with pytest.raises(openai.NotFoundError):
            await projects.service_accounts.api_keys.create(first.id, project_id=project)


class TestKeys:
    async def test_a_key_is_shown_once_and_says_whose_it_is(
        self, client: AsyncOpenAI, api: Api, project: str, admin_key: CreatedKey, admin: Administration
    ) -> None:
        projects = client.admin.organization.projects
        account, key = await jobs(client, project)
        mine = await client.admin.organization.admin_api_keys.create(name="mine")
        async with as_caller(api, admin_key) as calling:
            for path in (
                "admin_api_keys",
                f"admin_api_keys/{mine.id}",
                f"projects/{project}/api_keys",
                f"projects/{project}/api_keys/{key.id}",
                f"projects/{project}/service_accounts/{account.id}",
                "audit_logs",
            ):
                shown = (await calling.client.get(f"/v1/organization/{path}")).text
                for secret in (key.value, mine.value, admin_key.secret):
                    assert secret not in shown and secret[10:-4] not in shown, path
        plain = await admin.create_key(project, "by a command", PROJECT_SCOPES)
        keys = {each.id: each async for each in projects.api_keys.list(project, limit=1)}
        assert keys.keys() == {key.id, plain.row.id}
        owner = keys[key.id].owner
        assert owner.type == "service_account" and owner.service_account is not None
        assert owner.service_account.id == account.id
        assert keys[plain.row.id].owner.type is None
        assert keys[plain.row.id] == await projects.api_keys.retrieve(plain.row.id, project_id=project)
        assert [each async for each in projects.api_keys.list(project, owner_project_access="inactive")] == []

    async def test_its_scopes_and_its_end_can_change_until_it_is_deleted(
        self, client: AsyncOpenAI, api: Api, project: str
    ) -> None:
        projects = client.admin.organization.projects
        account, key = await jobs(client, project)
        assert await works(api, key.value)
        changed = await projects.api_keys.update(key.id, project_id=project, scopes=["read"], expires_in_seconds=500)
        assert changed.expires_at is not None and changed.to_dict()["scopes"] == ["read"]
        async with as_caller(api, key.value) as calling:

            async def refused() -> bool:
                return (await calling.post(background=True)).status_code == 403

            await until(refused)
        for attempt in (  # An empty list means all in OpenAI's API.
            projects.api_keys.update(key.id, project_id=project, scopes=[]),
            projects.service_accounts.api_keys.create(account.id, project_id=project, scopes=[]),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await attempt
            assert caught.value.param == "scopes"
        assert (await projects.api_keys.retrieve(key.id, project_id=project)).to_dict()["scopes"] == ["read"]
        every = sorted(scope.value for scope in PROJECT_SCOPES)
        wide = await projects.api_keys.update(key.id, project_id=project, scopes=every)
        assert (wide.to_dict()["scopes"], wide.expires_at) == (every, changed.expires_at)
        with pytest.raises(openai.BadRequestError, match="nothing to change"):
            await projects.api_keys.update(key.id, project_id=project)
        for call in (
            client.admin.organization.admin_api_keys.retrieve,
            client.admin.organization.admin_api_keys.delete,
        ):
            with pytest.raises(openai.NotFoundError):
                await call(key.id)
        assert (await projects.api_keys.delete(key.id, project_id=project)).deleted
        await stops_working(api, key.value)
        for gone in (projects.api_keys.retrieve, projects.api_keys.delete):
            with pytest.raises(openai.NotFoundError):
                await gone(key.id, project_id=project)

    async def test_a_key_never_outlives_the_key_that_makes_it(self, api: Api, admin: Administration) -> None:
        parent = await admin.create_key(None, "a day", OPERATOR_SCOPES, 86_400)
        project = await admin.create_project("red")
        lasting = await admin.create_key(project.id, "lasting", PROJECT_SCOPES, 1000)
        organization, long = "/v1/organization", {"expires_in_seconds": 86_401}
        accounts = f"{organization}/projects/{project.id}/service_accounts"
        async with as_caller(api, parent) as calling:
            account = (await calling.client.post(accounts, json={"name": "jobs", "expires_in_seconds": 9})).json()["id"]
            for path, fields in (
                (f"{organization}/admin_api_keys", {"name": "child"}),
                (accounts, {"name": "others"}),
                (f"{accounts}/{account}/api_keys", {}),
                (f"{organization}/projects/{project.id}/api_keys/{lasting.row.id}", None),
            ):
                for sent in ({**fields, **long}, fields) if fields is not None else (long,):
                    refused = await calling.client.post(path, json=sent)
                    assert refused.status_code == 400 and refused.json()["error"]["param"] == "expires_in_seconds"
                granted = await calling.client.post(path, json={**(fields or {}), "expires_in_seconds": 5000})
                assert granted.status_code == 200

    async def test_admin_keys_are_made_with_no_more_scopes_listed_and_deleted(
        self, client: AsyncOpenAI, api: Api, admin_key: CreatedKey, admin: Administration
    ) -> None:
        keys = client.admin.organization.admin_api_keys
        made = await keys.create(name="mine", expires_in_seconds=1000)
        assert made.expires_at is not None and await works(api, made.value)
        assert [key.id async for key in keys.list(limit=1)] == [admin_key.row.id, made.id]
        assert [key.id async for key in keys.list(order="desc")] == [made.id, admin_key.row.id]
        assert (await keys.retrieve(made.id)).redacted_value == made.redacted_value
        assert (await keys.delete(made.id)).deleted
        await stops_working(api, made.value)
        assert [key.id async for key in keys.list()] == [admin_key.row.id]
        async with as_caller(api, await admin.create_key(None, "narrow", {Scope.ADMIN})) as calling:
            child = await calling.client.post("/v1/organization/admin_api_keys", json={"name": "wide"})
        assert child.json()["scopes"] == ["admin"]


async def test_models_are_allowed_or_denied_by_name(client: AsyncOpenAI, project: str) -> None:
    """That a permission holds: test_keys.py."""
    permissions: Any = client.admin.organization.projects.model_permissions
    none = await permissions.retrieve(project)
    assert (none.mode, none.api_model_ids) == ("deny_list", [])
    for mode in ("allow_list", "deny_list"):
        changed = await permissions.update(project, mode=mode, model_ids=[OTHER_MODEL])
        for shown in (changed, await permissions.retrieve(project)):
            assert (shown.mode, shown.api_model_ids) == (mode, [OTHER_MODEL])
    assert (await permissions.delete(project)).deleted
    assert (await permissions.retrieve(project)).api_model_ids == []
    with pytest.raises(openai.BadRequestError) as raised:
        await permissions.update(project, mode="deny_list", model_ids=[MODEL, "typo"])
    assert raised.value.param == "model_ids[1]"


async def test_rate_limits_are_set_and_removed_by_model(client: AsyncOpenAI, project: str) -> None:
    limits = client.admin.organization.projects.rate_limits
    listed = [limit async for limit in limits.list_rate_limits(project, limit=2)]
    assert [limit.model for limit in listed] == [ALL_MODELS, MODEL, OTHER_MODEL]
    assert {limit.max_requests_per_1_minute for limit in listed} == {NO_LIMIT}
    other = listed[-1].id
    for change, shown in (
        ({"max_requests_per_1_minute": 7}, (7, NO_LIMIT)),
        ({"max_tokens_per_1_minute": 1000}, (7, 1000)),
        ({"max_requests_per_1_minute": NO_LIMIT}, (NO_LIMIT, 1000)),
    ):
        limit = await limits.update_rate_limit(other, project_id=project, **change)  # type: ignore[arg-type]
        assert (limit.max_requests_per_1_minute, limit.max_tokens_per_1_minute) == shown
    before = (await limits.list_rate_limits(project, before=other, limit=1)).data
    assert [limit.model for limit in before] == [MODEL]
    assert await audited(client, resource_ids=[other]) == ["rate_limit.updated"] * 3


async def counted(db: Database, minute: str, project: str, tokens: int, key_id: str = "", model: str = MODEL) -> None:
    """Adds a row to the ledger: `tokens` of input, half of them cached, and as many of output."""
    values = {"minute": datetime.fromisoformat(minute), "project": project, "key": key_id, "model": model}
    statement = """INSERT INTO usage (minute, project, key_id, model, tier, requests, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens)
        VALUES (:minute, :project, :key, :model, 'default', 1, :tokens, :half, :tokens, 0)"""
    await db.execute(text(statement), {**values, "tokens": tokens, "half": tokens // 2})


def seconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())


class TestUsage:
    async def test_what_responses_used_is_grouped_and_filtered(
        self, client: AsyncOpenAI, api: Api, project: str, player: Player, db: Database
    ) -> None:
        usage = client.admin.organization.usage
        account, key = await jobs(client, project)
        async with as_caller(api, key.value) as calling:
            for response_id in [await calling.background() for _ in range(2)]:
                await player.answer("Hi", response_id=response_id)
        used = (await row_of(db, response_id)).usage or {}
        page = await usage.completions(
            start_time=int(time.time()) - 3600,
            group_by=["project_id", "user_id", "api_key_id", "model", "service_tier", "batch", "api_source"],
        )
        (result,) = [result for bucket in page.data for result in bucket.results]
        assert (result.object, result.num_model_requests) == ("organization.usage.completions.result", 2)
        assert (result.input_tokens, result.output_tokens) == (2 * used["input_tokens"], 2 * used["output_tokens"])
        assert (result.project_id, result.user_id, result.api_key_id) == (project, account.id, key.id)
        assert (result.model, result.service_tier) == (MODEL, "default")
        assert (result.batch, result.api_source) == (False, "unlabeled")

        await counted(db, "2026-10-01T10:00Z", project, 1, key.id)
        await counted(db, "2026-10-01T10:00Z", "default", 2)
        await counted(db, "2026-10-01T10:00Z", "default", 4, model=OTHER_MODEL)
        queries: list[tuple[dict[str, Any], int]] = [
            ({}, 7),
            ({"project_ids": [project]}, 1),
            ({"api_key_ids": [key.id]}, 1),
            ({"user_ids": [account.id]}, 1),
            ({"models": [OTHER_MODEL]}, 4),
            ({"batch": True}, 0),
            ({"batch": False}, 7),
        ]
        start, end = seconds("2026-10-01T00:00Z"), seconds("2026-10-02T00:00Z")
        for query, total in queries:
            page = await usage.completions(start_time=start, end_time=end, **query)
            assert sum(_tokens(result) for bucket in page.data for result in bucket.results) == total, query

    async def test_a_page_ends_before_it_has_too_many_results_and_buckets_begin_at_full_hours_and_days(
        self, client: AsyncOpenAI, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for minute, tokens in (("2026-11-01T10:59Z", 1), ("2026-11-01T11:00Z", 2), ("2026-11-02T00:00Z", 4)):
            await counted(db, minute, "default", tokens)
        usage = client.admin.organization.usage
        start, end = seconds("2026-11-01T10:30Z"), seconds("2026-11-03T00:00Z")
        days = await usage.completions(start_time=start, end_time=end)
        assert [(bucket.start_time, bucket.end_time) for bucket in days.data] == [
            (start, seconds("2026-11-02T00:00Z")),
            (seconds("2026-11-02T00:00Z"), end),
        ]
        assert [[_tokens(result) for result in bucket.results] for bucket in days.data] == [[3], [4]]
        assert not days.has_more and days.next_page is None
        hours: Any = {"start_time": start, "end_time": end, "bucket_width": "1h", "limit": 1}
        first = await usage.completions(**hours)
        assert first.has_more and first.next_page is not None
        second = await usage.completions(**hours, page=first.next_page)
        assert [_tokens(result) for page in (first, second) for result in page.data[0].results] == [1, 2]
        exact = await usage.completions(start_time=start, end_time=seconds("2026-11-01T11:00Z"), bucket_width="1m")
        assert sum(_tokens(result) for bucket in exact.data for result in bucket.results) == 1

        await counted(db, "2026-11-02T00:00Z", "default", 1, model=OTHER_MODEL)
        monkeypatch.setattr("app.api.routes.organization.usage.MAX_RESULTS", 2)
        grouped: Any = {"start_time": start, "end_time": end, "group_by": ["model"]}
        first = await usage.completions(**grouped)
        assert len(first.data) == 1 and first.has_more and first.next_page is not None
        rest = await usage.completions(**grouped, page=first.next_page)
        assert len(rest.data) == 1 and not rest.has_more
        monkeypatch.setattr("app.api.routes.organization.usage.MAX_RESULTS", 1)
        with pytest.raises(openai.BadRequestError, match="more than 1 results"):
            await usage.completions(**{**grouped, "start_time": seconds("2026-11-02T00:00Z")})


def _tokens(result: Any) -> int:
    assert result.input_cached_tokens + result.input_uncached_tokens == result.input_tokens
    return int(result.input_tokens)


class TestAuditLogs:
    async def test_every_action_leaves_an_entry(
        self, client: AsyncOpenAI, admin_key: CreatedKey, admin: Administration
    ) -> None:
        organization = client.admin.organization
        projects = organization.projects
        project = (await projects.create(name="red")).id
        await projects.update(project, name="rouge")
        account = await projects.service_accounts.create(project, name="jobs")
        await projects.service_accounts.update(account.id, project_id=project, name="work")
        key = await projects.service_accounts.api_keys.create(account.id, project_id=project, scopes=["read"])
        await projects.api_keys.update(key.id, project_id=project, scopes=["responses"])
        await projects.api_keys.delete(key.id, project_id=project)
        await projects.service_accounts.delete(account.id, project_id=project)
        await projects.model_permissions.update(project, mode="deny_list", model_ids=[MODEL])
        await projects.model_permissions.delete(project)
        await admin.rotate_key((await admin.create_key(project, "mine", PROJECT_SCOPES)).row.id)
        await projects.update(project)  # This and the second archive change nothing, so they leave no entry.
        for _ in range(2):
            await projects.archive(project)
        own = await organization.admin_api_keys.create(name="mine")
        await organization.admin_api_keys.delete(own.id)
        entries = """api_key.created project.created project.updated service_account.created api_key.created
            service_account.updated api_key.created api_key.updated api_key.deleted service_account.deleted
            project.updated project.updated api_key.created api_key.updated api_key.created
            project.archived api_key.created api_key.deleted"""
        assert await audited(client, limit=3) == entries.split()  # The first is the fixture's key.
        (entry,) = [
            each async for each in organization.audit_logs.list(resource_ids=[key.id], event_types=["api_key.created"])
        ]
        assert entry.api_key_created is not None and entry.api_key_created.data is not None
        assert (entry.api_key_created.id, entry.api_key_created.data.scopes) == (key.id, ["read"])
        assert entry.project is not None and (entry.project.id, entry.project.name) == (project, "rouge")
        assert entry.actor is not None and entry.actor.api_key is not None
        assert entry.actor.api_key.id == admin_key.row.id
        assert entry.to_dict()["ip_address"] == "127.0.0.1"
        assert str(entry.to_dict()["request_id"]).startswith("req_")
        (own_entry, *_) = [each async for each in organization.audit_logs.list(resource_ids=[own.id])]
        assert own_entry.project is None

    async def test_entries_are_found_by_actor_project_and_time_and_what_leaves_none_does_not_happen(
        self, client: AsyncOpenAI, admin_key: CreatedKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logs, projects = client.admin.organization.audit_logs, client.admin.organization.projects
        red, blue = [(await projects.create(name=name)).id for name in ("red", "blue")]
        assert await audited(client, actor_ids=[COMMAND_LINE_ACTOR]) == ["api_key.created"]
        assert await audited(client, actor_ids=[admin_key.row.id]) == ["project.created"] * 2
        assert await audited(client, project_ids=[blue]) == ["project.created"]
        newest = (await logs.list(limit=1)).data[0]
        assert newest.project is not None and newest.project.id == blue
        second = newest.effective_at
        assert newest.id in {each.id async for each in logs.list(effective_at={"gte": second, "lte": second})}
        assert newest.id not in {each.id async for each in logs.list(effective_at={"lt": second})}
        assert [each async for each in logs.list(effective_at={"gt": second})] == []
        (older,) = (await logs.list(limit=1, after=newest.id)).data
        assert older.project is not None and older.project.id == red
        assert [each.id for each in (await logs.list(limit=1, before=older.id)).data] == [newest.id]

        async def fail(*_: Any) -> None:
            raise openai.OpenAIError("the disk is full")

        monkeypatch.setattr(changes.audit, "add", fail)
        for attempt in (
            projects.create(name="green"),
            projects.archive(red),
            projects.service_accounts.create(red, name="jobs"),
            client.admin.organization.admin_api_keys.create(name="mine"),
        ):
            with pytest.raises(openai.InternalServerError):
                await attempt
        assert [each.name async for each in projects.list()] == ["default", "red", "blue"]
        assert [each async for each in projects.service_accounts.list(red)] == []
        assert len([each async for each in client.admin.organization.admin_api_keys.list()]) == 1


RED = "projects/default"
BODIES_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("projects", {}, "name"),
    ("projects", {"name": ""}, "name"),
    *(
        ("projects", {"name": "x", name: "EU"}, name)
        for name in ("external_key_id", "geography", "residency", "colour")
    ),
    (RED, {"geography": "EU"}, "geography"),
    *((RED, {"weight": each}, "weight") for each in (0, 0.0009, 1001, -1, "1")),
    (RED, {"top_tier": "best"}, "top_tier"),
    *((RED, {"conversation_days": each}, "conversation_days") for each in (-1, 3661)),
    (f"{RED}/erase", {"after_days": 3661}, "after_days"),
    *(("api_keys", {"name": "x", EXPIRES: each}, EXPIRES) for each in (0, 10**10)),
    ("api_keys", {"name": "x", "scopes": ["all"]}, "scopes[0]"),
    ("api_keys/key_1/rotate", {"overlap_seconds": -1}, "overlap_seconds"),
    (f"{RED}/limits", {"kind": "tokens", "value": 1}, "kind"),
    *((f"{RED}/limits", {"kind": "tokens_per_day", "value": each}, "value") for each in (0, -1, 2**53 - 1, 2**53 + 1)),
    *((f"{RED}/service_accounts", {"name": "x", EXPIRES: each}, EXPIRES) for each in (0, 10**10)),
    (f"{RED}/service_accounts", {"name": "x", ALONE: True}, ALONE),
    (f"{RED}/service_accounts/svc_acct_1", {"role": "owner"}, "role"),
    (f"{RED}/service_accounts/svc_acct_1/api_keys", {"scopes": ["admin"]}, "scopes[0]"),
    (f"{RED}/api_keys/key_1", {"scopes": None}, "scopes"),
    (f"{RED}/api_keys/key_1", {EXPIRES: None}, EXPIRES),
    ("admin_api_keys", {"name": "x", EXPIRES: None}, EXPIRES),
    (f"{RED}/model_permissions", {"mode": "maybe", "model_ids": []}, "mode"),
    *(
        (f"{RED}/rate_limits/rl-*", {f"max_{name}": value}, f"max_{name}")
        for name, value in (
            ("requests_per_1_minute", 0),
            ("tokens_per_1_minute", 2**53),
            ("requests_per_1_day", 5),
            ("images_per_1_minute", 5),
        )
    ),
]
QUERIES_REFUSED = [
    *(f"projects?{each}" for each in ("limit=0", "limit=101", "order=asc", "after=proj_none")),
    f"{RED}/rate_limits?after=rl-none",
    "usage/completions?start_time=soon",
    *(
        f"usage/completions?start_time=0&{each}"
        for each in ("bucket_width=1w", "limit=32", "bucket_width=1m&limit=1441", "group_by[]=colour", "page=next")
    ),
    *(
        f"audit_logs?{each}"
        for each in ("after=a&before=b", "actor_emails[]=a", "tenant_only=true", "effective_at[gt]=soon")
    ),
    "audit_logs?" + "&".join(["event_types=x"] * 101),
]
"""The last parameter of each is the one at fault."""


async def test_what_is_not_supported_is_refused_by_name_and_so_is_a_key_of_a_project(
    api: Api, client: AsyncOpenAI, admin_key: CreatedKey, admin: Administration, project: str
) -> None:
    async with as_caller(api, await tenant(admin, "everything")) as calling:
        answer = await calling.client.get("/v1/organization/projects")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")
    async with as_caller(api, admin_key) as calling:
        for path, body, param in BODIES_REFUSED:
            answer = await calling.client.post(f"/v1/organization/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, answer.text)
        for path in QUERIES_REFUSED:
            answer = await calling.client.get(f"/v1/organization/{path}")
            param = re.findall(r"([\w\[\]]+)=", path)[-1]
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, answer.text)
    organization = client.admin.organization
    for attempt in (
        organization.users.list(),
        organization.usage.embeddings(start_time=0),
        organization.projects.data_retention.retrieve(project),
        organization.projects.users.list(project),
        organization.projects.roles.list(project),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt
