"""`longhaul keys`, `longhaul projects` and `longhaul limits`, and the first admin key."""

from __future__ import annotations

import fcntl
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.access.secret import is_well_formed
from app.cli import cli
from app.local.home import LOCK_FILE, SERVICES_FILE, Home


@pytest.fixture
def home(services: Any, emptied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """The data folder of a `longhaul up` that runs: no variable names the services."""
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path))
    home = Home.prepare(tmp_path)
    urls = {"DATABASE_URL": emptied, "REDIS_URL": services.redis_url}
    with (tmp_path / LOCK_FILE).open("wb") as lock, home.showing_services(urls):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def longhaul(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def printed(*arguments: str) -> str:
    result = longhaul(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_life_of_a_project_and_its_keys(home: Home) -> None:
    project = printed("projects", "create", "team red", "--models", "a, b", "--tool-servers", "none").strip()
    listed = printed("projects", "list").splitlines()
    assert listed[1] == f"{project}\tteam red\tactive\tmodels a,b\ttool servers none\ttier default\tweight 1\tstored 0"
    secret = printed("keys", "create", "--project", project, "--name", "laptop", "--days", "2").strip()
    assert is_well_formed(secret)
    (line,) = printed("keys", "list", "--project", project).splitlines()
    assert secret not in line and secret[:10] in line and "batches,files,read,responses" in line
    key = line.split("\t")[0]
    second = printed("keys", "rotate", key, "--overlap-hours", "1").strip()
    assert is_well_formed(second) and second != secret
    assert "\trevoked\t" in printed("keys", "revoke", key)
    assert "\tarchived\t" in printed("projects", "archive", project)
    assert [line.split("\t")[5] for line in printed("keys", "list").splitlines()] == ["revoked", "archived"]


def test_each_thing_that_a_project_has_is_set_and_changed_alone(home: Home) -> None:
    made = printed("projects", "create", "team", "--tool-servers", "python", "--weight", "3", "--tier", "priority")
    project = made.strip()

    def shown(*arguments: str) -> str:
        return printed(*arguments).strip().partition("\tmodels ")[2]

    listed = printed("projects", "list").splitlines()[1]
    assert listed.endswith("models *\ttool servers python\ttier priority\tweight 3\tstored 0")
    assert "tier priority\tweight 0.5\t" in shown("projects", "update", project, "--weight", "0.5")
    everything = ("projects", "permit", project, "--models", "all", "--tool-servers", "all")
    assert shown(*everything) == "*\ttool servers *\ttier priority\tweight 0.5\tstored 0"
    assert "tier flex" in shown(*everything, "--tier", "flex")
    assert shown("projects", "permit", project, "--models", "all,!b", "--tool-servers", "none").startswith(
        "!b,*\ttool servers none"
    )
    days = ("projects", "update", project, "--conversation-days")
    assert shown(*days, "30").endswith("\tstored 0\tconversations 30 days")
    assert shown(*days, "0").endswith("\tstored 0")
    erased = shown("projects", "erase", project, "--days", "30")
    assert re.search(r"\terased at \d{4}-\d\d-\d\d \d\d:\d\d UTC$", erased)
    assert "\tarchived\t" in printed("projects", "list")
    assert longhaul("projects", "erase", project, "--days", "4000").exit_code != 0


def test_a_mistake_is_one_line_that_says_what_would_be_right(home: Home) -> None:
    """What administration refuses is in integration/access."""
    for arguments, status, words in (
        (("keys", "create"), 2, "--project ID or --admin"),
        (("keys", "create", "--admin", "--project", "default"), 2, "--project ID or --admin"),
        (("keys", "create", "--project", "default", "--scopes", "all"), 2, "--scopes: expected some of responses,"),
        (("keys", "create", "--project", "default", "--days", "0"), 1, "a key may live for"),
        (("projects", "update", "proj_none", "--weight", "2"), 1, "no project 'proj_none'"),
    ):
        result = longhaul(*arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (status, 1)
        assert result.stderr.startswith("longhaul: ") and words in result.stderr


def test_the_first_admin_key_lies_in_a_file_that_only_its_owner_reads(
    home: Home, monkeypatch: pytest.MonkeyPatch, services: Any
) -> None:
    assert "it was not made" in printed("keys")
    monkeypatch.setenv("LONGHAUL_AUTH", "keys")
    monkeypatch.setenv("DATABASE_URL", services.database_url)
    assert printed("migrate").strip() == f"the first admin key lies in {home.admin_key_file}"
    assert stat.S_IMODE(home.admin_key_file.stat().st_mode) == 0o600
    secret = home.admin_key_file.read_text().strip()
    assert is_well_formed(secret) and secret not in printed("keys", "list")
    assert printed("keys").strip().endswith(str(home.admin_key_file))
    assert printed("migrate") == ""
    assert home.admin_key_file.read_text().strip() == secret


def test_without_keys_no_first_key_is_made(home: Home, monkeypatch: pytest.MonkeyPatch, services: Any) -> None:
    monkeypatch.setenv("DATABASE_URL", services.database_url)
    printed("migrate")
    assert not home.admin_key_file.exists() and printed("keys", "list") == ""


def test_the_services_of_a_start_are_known_to_nobody_else_and_only_while_it_runs(tmp_path: Path) -> None:
    home = Home.prepare(tmp_path)
    with home.showing_services({"DATABASE_URL": "postgresql:///x"}):
        assert stat.S_IMODE((tmp_path / SERVICES_FILE).stat().st_mode) == 0o600
    assert not (tmp_path / SERVICES_FILE).exists()


def test_the_life_of_a_limit(home: Home) -> None:
    project = printed("projects", "create", "team red").strip()
    assert printed("limits", "set", project, "tokens_per_day", "500") == f"{project}\t*\ttokens_per_day\t500\ttaken 0\n"
    printed("limits", "set", project, "queued_responses", "7", "--model", "m")
    assert printed("limits", "list").splitlines() == [
        f"{project}\t*\ttokens_per_day\t500",
        f"{project}\tm\tqueued_responses\t7",
    ]
    left = printed("limits", "remove", project, "tokens_per_day")
    assert left == printed("limits", "list", "--project", project) == f"{project}\tm\tqueued_responses\t7\ttaken 0\n"


def test_migrate_makes_the_key_that_it_is_given_and_needs_no_folder(
    home: Home, monkeypatch: pytest.MonkeyPatch, services: Any
) -> None:
    secret = printed("keys", "generate").strip()
    monkeypatch.setenv("LONGHAUL_AUTH", "keys")
    monkeypatch.setenv("LONGHAUL_ADMIN_KEY", secret)
    monkeypatch.setenv("DATABASE_URL", services.database_url)
    monkeypatch.setenv("REDIS_URL", services.redis_url)
    monkeypatch.setenv("LONGHAUL_HOME", "/proc/none")
    assert printed("migrate").strip() == "the key in LONGHAUL_ADMIN_KEY is an admin key now"
    assert printed("migrate") == ""
    assert printed("keys").strip().endswith("The first admin key: the one in LONGHAUL_ADMIN_KEY")
    (line,) = printed("keys", "list").splitlines()
    assert "admin,operator" in line and secret[:10] in line and secret not in line
    assert is_well_formed(printed("keys", "create", "--admin", "--name", "rescue").strip())
    monkeypatch.setenv("LONGHAUL_ADMIN_KEY", "hunter2")
    result = longhaul("migrate")
    assert result.exit_code == 2
    assert result.stderr == "longhaul: LONGHAUL_ADMIN_KEY: it is no API key; `longhaul keys generate` prints one\n"


@pytest.mark.parametrize("arguments", [("keys",), ("keys", "--help")])
def test_help_makes_no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "none"))
    assert "Make, list and end API keys" in printed(*arguments)
    assert not (tmp_path / "none").exists()
