"""`longhaul migrate`, as a process on real services."""

from __future__ import annotations

from pathlib import Path

from tests.support.celery_processes import ForkedProcess
from tests.support.services import Services
from tests.support.upping import longhaul, one_line
from tests.support.waiting import until_sync


def test_migrate_keeps_running_under_honcho_which_stops_all_when_one_ends(services: Services, tmp_path: Path) -> None:
    env = {"DATABASE_URL": services.owner_url, "HONCHO_PROCESS_NAME": "release.1"}
    process = ForkedProcess(["migrate"], env, tmp_path / "log")
    try:
        until_sync(lambda: process.text.endswith("\n"), what=lambda: process.text)
        said = "the schema is up to date; waiting for the end, because honcho stops every process when one ends\n"
        assert process.text == said
        process.send_signal()
        assert process.wait() == 0
    finally:
        process.kill()


def test_migrate_reports_an_error_in_one_line() -> None:
    for url, complaint in (
        ("postgresql://u:hunter2@127.0.0.1:1/x", "DATABASE_URL: Postgres cannot be reached"),
        ("", "DATABASE_URL is not set"),
    ):
        result = longhaul("migrate", env={"DATABASE_URL": url})
        assert result.returncode != 0
        assert one_line(result).startswith(f"longhaul: {complaint}") and "hunter2" not in result.stderr
