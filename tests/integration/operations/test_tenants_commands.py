"""`longhaul keys`, `longhaul projects` and `longhaul limits`: what they set, print and refuse."""

from __future__ import annotations

from typing import Any

import pytest

from app.access.administration import Administration
from app.access.caller import OPERATOR_SCOPES, Scope
from app.access.secret import is_well_formed
from tests.integration.operations.here import ShellHere
from tests.support.api import Api
from tests.support.commands import Shell


@pytest.fixture
async def shell(api: Api, admin: Administration) -> Shell:
    """That of an admin."""
    return ShellHere.of(api.url, (await admin.create_key(None, "admin", OPERATOR_SCOPES)).secret)


async def printed(shell: Shell, *arguments: str) -> str:
    ran = await shell.run(*arguments)
    assert ran.status == 0, ran.err
    return ran.out.strip()


async def shown(shell: Shell, *arguments: str) -> list[dict[str, Any]]:
    ran = await shell.run(*arguments, "--json")
    assert ran.status == 0, ran.err
    return ran.lines


async def test_the_life_of_a_project_and_its_keys(shell: Shell) -> None:
    project = await printed(shell, "projects", "create", "team red", "--models", "a, b", "--tool-servers", "none")
    _, listed = (await printed(shell, "projects", "list")).splitlines()[1:]
    assert listed == f"{project}\tteam red\tactive\ta,b\tnone\tdefault\t1.0\t0\t-\t-"
    secret = await printed(shell, "keys", "create", "--project", project, "--name", "laptop", "--days", "2")
    assert is_well_formed(secret)
    (key,) = await shown(shell, "keys", "list", "--project", project)
    assert key["name"] == "laptop" and secret.startswith(key["redacted_value"][:10]) and key["expires_at"] is not None
    assert key["scopes"] == ["batches", "files", "read", "responses"]
    second = await printed(shell, "keys", "rotate", key["id"], "--overlap-hours", "1")
    assert is_well_formed(second) and second != secret
    assert await printed(shell, "keys", "revoke", key["id"]) == f"{key['id']} has ended"
    assert [each["name"] for each in await shown(shell, "keys", "list", "--project", project)] == ["laptop"]
    assert "\tarchived\t" in await printed(shell, "projects", "archive", project)


async def test_each_thing_that_a_project_has_is_set_and_changed_alone(shell: Shell) -> None:
    options = ("--tool-servers", "python", "--weight", "3", "--tier", "priority")
    project = await printed(shell, "projects", "create", "team", *options)
    known: dict[str, Any] = {"models": ["*"], "tool_servers": ["python"], "top_tier": "priority", "weight": 3.0}
    for option, value, changes in (
        ("--weight", "0.5", {"weight": 0.5}),
        ("--models", "all,!b", {"models": ["!b", "*"]}),
        ("--tool-servers", "all", {"tool_servers": ["*"]}),
        ("--tier", "flex", {"top_tier": "flex"}),
        ("--conversation-days", "30", {"conversation_days": 30}),
        ("--conversation-days", "0", {"conversation_days": None}),
    ):
        known |= changes
        (found,) = await shown(shell, "projects", "update", project, option, value)
        assert {name: found[name] for name in known} == known
    (erased,) = await shown(shell, "projects", "erase", project, "--days", "30")
    assert erased["status"] == "archived" and erased["erase_at"] is not None


async def test_the_life_of_a_limit(shell: Shell) -> None:
    project = await printed(shell, "projects", "create", "team red")
    titles = "kind\tmodel\tvalue\ttaken\n"
    made = await printed(shell, "limits", "set", project, "tokens_per_day", "500")
    assert made == f"{titles}tokens_per_day\t*\t500\t0"
    await printed(shell, "limits", "set", project, "queued_responses", "7", "--model", "m")
    assert {each["kind"] for each in await shown(shell, "limits", "list", project)} == {
        "tokens_per_day",
        "queued_responses",
    }
    left = await printed(shell, "limits", "remove", project, "tokens_per_day")
    assert left == await printed(shell, "limits", "list", project) == f"{titles}queued_responses\tm\t7\t0"


MISTAKES = [
    (("keys", "create"), 2, "--project ID or --admin"),
    (("keys", "create", "--admin", "--project", "default"), 2, "--project ID or --admin"),
    (("keys", "create", "--project", "default", "--scopes", "all"), 2, "'all'. Supported values are: 'responses'"),
    (("keys", "create", "--project", "default", "--scopes", "admin"), 2, "of a project has scopes of"),
    (("keys", "create", "--project", "default", "--days", "0"), 2, "expires_in_seconds"),
    (("keys", "revoke", "key_none"), 1, "no key 'key_none'"),
    (("projects", "update", "proj_none", "--weight", "2"), 1, "no project 'proj_none'"),
    (("projects", "update", "default", "--weight", "0"), 2, "weight"),
    (("projects", "erase", "default", "--days", "4000"), 2, "after_days"),
    (("limits", "set", "default", "tokens", "5"), 2, "kind"),
    (("limits", "list", "proj_none"), 1, "no project 'proj_none'"),
]


async def test_a_mistake_is_one_line_that_says_what_would_be_right(shell: Shell) -> None:
    for arguments, status, words in MISTAKES:
        ran = await shell.run(*arguments)
        assert (ran.status, ran.out, ran.err.count("\n")) == (status, "", 1), ran.err
        assert ran.err.startswith("longhaul: ") and words in ran.err


async def test_a_key_gives_no_scope_that_it_has_not_itself(api: Api, admin: Administration) -> None:
    wide = await admin.create_key(None, "wide", OPERATOR_SCOPES)
    shell = ShellHere.of(api.url, (await admin.create_key(None, "narrow", {Scope.ADMIN})).secret)
    assert is_well_formed(await printed(shell, "keys", "create", "--admin"))
    assert (await shown(shell, "keys", "list"))[-1]["scopes"] == ["admin"]
    for arguments in (("create", "--admin", "--scopes", "operator"), ("rotate", wide.row.id)):
        ran = await shell.run("keys", *arguments)
        assert (ran.status, ran.out) == (2, "") and "no scope that it has not itself: operator" in ran.err
