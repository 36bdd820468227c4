"""The first admin key: who makes it, where it lies, and how a lost one is replaced."""

from __future__ import annotations

import fcntl
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


def test_the_first_admin_key_lies_in_a_file_that_only_its_owner_reads(
    home: Home, monkeypatch: pytest.MonkeyPatch, services: Any
) -> None:
    assert "it was not made" in printed("keys")
    monkeypatch.setenv("LONGHAUL_AUTH", "keys")
    monkeypatch.setenv("DATABASE_URL", services.database_url)
    assert printed("migrate").strip() == f"the first admin key lies in {home.admin_key_file}"
    assert stat.S_IMODE(home.admin_key_file.stat().st_mode) == 0o600
    secret = home.admin_key_file.read_text().strip()
    assert is_well_formed(secret)
    assert printed("keys").strip().endswith(str(home.admin_key_file))
    assert printed("migrate") == ""
    assert home.admin_key_file.read_text().strip() == secret


def test_without_keys_no_first_key_is_made(home: Home, monkeypatch: pytest.MonkeyPatch, services: Any) -> None:
    monkeypatch.setenv("DATABASE_URL", services.database_url)
    printed("migrate")
    assert not home.admin_key_file.exists()


def test_the_services_of_a_start_are_known_to_nobody_else_and_only_while_it_runs(tmp_path: Path) -> None:
    home = Home.prepare(tmp_path)
    with home.showing_services({"DATABASE_URL": "postgresql:///x"}):
        assert stat.S_IMODE((tmp_path / SERVICES_FILE).stat().st_mode) == 0o600
    assert not (tmp_path / SERVICES_FILE).exists()


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
    monkeypatch.setenv("LONGHAUL_ADMIN_KEY", printed("keys", "generate").strip())
    assert printed("migrate").strip() == "the key in LONGHAUL_ADMIN_KEY is an admin key now", "a lost one is replaced"
    monkeypatch.setenv("LONGHAUL_ADMIN_KEY", "hunter2")
    result = longhaul("migrate")
    assert result.exit_code == 2
    assert result.stderr == "longhaul: LONGHAUL_ADMIN_KEY: it is no API key; `longhaul keys generate` prints one\n"


@pytest.mark.parametrize("arguments", [("keys",), ("keys", "--help")])
def test_help_makes_no_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "none"))
    assert "Make, list and end API keys" in printed(*arguments)
    assert not (tmp_path / "none").exists()
