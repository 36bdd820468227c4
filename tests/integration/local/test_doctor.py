"""`longhaul doctor` on real services: what is as it should be, and each thing that is not, with what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from app.cli import cli
from app.local.ports import free_port
from app.store.database import Database
from app.store.migrate import migrate
from app.store.roles.rights import API, MAINTENANCE, MONITOR, WORKER
from tests.support.commands import Ran, Shell
from tests.support.scripted import models_of
from tests.support.services import Services
from tests.support.worker import worker


@pytest.fixture
def shell(services: Services, migrated: str, db: Database, tmp_path: Path) -> Shell:
    """An API's settings, on this machine."""
    (tmp_path / "models.toml").write_text(models_of("scripted"))
    return Shell(
        {
            "DATABASE_URL": services.url_of(API),
            "REDIS_URL": services.redis_url,
            "LONGHAUL_HOME": str(tmp_path / "home"),
            "LONGHAUL_MODELS": str(tmp_path / "models.toml"),
            "LONGHAUL_PORT": str(free_port()),
        }
    )


async def examined(shell: Shell, *arguments: str, **more: str) -> tuple[Ran, dict[str, dict[str, Any]]]:
    """What the doctor says, by what it looked at."""
    variables = {**shell.variables, **more}
    result = await asyncio.to_thread(lambda: CliRunner().invoke(cli, ["doctor", "--json", *arguments], env=variables))
    assert result.stderr == ""
    ran = Ran(result.exit_code, result.stdout, result.stderr)
    return ran, {line["check"]: line for line in ran.lines}


def wrong(found: dict[str, dict[str, Any]]) -> set[str]:
    return {check for check, line in found.items() if line["level"] != "ok"}


async def test_a_sound_installation_has_nothing_wrong(shell: Shell, db: Database, pubsub: Any) -> None:
    async with worker(db, pubsub):
        ran, found = await examined(shell)
    assert wrong(found) == {"commits"}, "there is no standby, and nobody told that this is one machine"
    assert ran.status == 0
    assert all(line["to_do"] == "" for line in found.values() if line["level"] == "ok")
    assert found["rights of longhaul_api"]["found"] == "what its processes need, and no more"
    assert {"Postgres", "Redis", "clock of Postgres", "clock of Redis", "schema", "GPUs", "disk"} <= set(found)
    strict, _ = await examined(shell, "--strict")
    assert strict.status == 1


async def test_every_process_s_role_can_be_examined(shell: Shell, services: Services) -> None:
    for role in (WORKER, MAINTENANCE):
        urls = {"DATABASE_URL": services.url_of(role), "LONGHAUL_MONITOR_DATABASE_URL": services.url_of(MONITOR)}
        ran, found = await examined(shell, **urls)
        assert ran.status == 0, ran.out
        assert found[f"rights of {role}"]["level"] == found["monitor's role"]["level"] == "ok"


async def test_a_role_with_more_or_less_than_it_needs_is_told_until_a_migration_has_mended_it(
    shell: Shell, services: Services
) -> None:
    owner = Database(services.owner_url, 1)
    try:
        for statement, expected in (
            (f"GRANT DELETE ON audit_logs TO {API}", (0, "warn", "it may more than it needs: DELETE on audit_logs")),
            (f"REVOKE INSERT ON audit_logs FROM {API}", (1, "fail", "it lacks INSERT on audit_logs")),
        ):
            await owner.execute(text(statement))
            ran, found = await examined(shell)
            line = found["rights of longhaul_api"]
            assert (ran.status, line["level"], line["found"]) == expected
        assert "longhaul migrate" in line["to_do"]
    finally:
        await migrate(owner)
        await owner.close()
    _, found = await examined(shell)
    assert found["rights of longhaul_api"]["level"] == "ok"


async def test_what_does_not_answer_is_told_and_the_rest_is_looked_at(shell: Shell, services: Services) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    urls = {"DATABASE_URL": f"postgresql://longhaul@{nobody}/longhaul", "REDIS_URL": f"redis://{nobody}/0"}
    ran, found = await examined(shell, **urls)
    assert ran.status == 1
    assert found["Postgres"]["level"] == found["Redis"]["level"] == "fail"
    assert found["models"]["level"] == "ok"
    wrong_password = services.url_of(API).replace("longhaul_api:", "longhaul_api:x")
    ran, found = await examined(shell, DATABASE_URL=wrong_password)
    assert "password authentication failed" in found["Postgres"]["found"]
    assert services.redis_url.split(":")[2].split("@")[0] not in ran.out, "no password is printed"


async def test_a_setting_or_a_models_file_that_is_wrong_is_a_finding(shell: Shell, tmp_path: Path) -> None:
    ran, found = await examined(shell, LONGHAUL_PORT="many")
    assert (ran.status, set(found)) == (1, {"settings"})
    (tmp_path / "models.toml").write_text("[[models]]\n")
    ran, found = await examined(shell, LONGHAUL_MAX_CONECTIONS="9")
    assert ran.status == 1
    assert found["models file"]["level"] == "fail"
    assert found["settings"]["found"] == "LONGHAUL_MAX_CONECTIONS have no effect"
