"""`longhaul migrate` and `longhaul flower`, as processes on real services."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.local.ports import free_port
from tests.integration.local.test_up import one_line
from tests.support.services import Services
from tests.support.upping import LONGHAUL, longhaul
from tests.support.waiting import until_sync


@contextmanager
def started(*args: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A `longhaul` command that runs until the block ends."""
    process = subprocess.Popen(
        [*LONGHAUL, *args], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_migrate_twice_is_as_good_as_once(services: Services) -> None:
    for _ in range(2):
        result = longhaul("migrate", env={"DATABASE_URL": services.database_url})
        assert (result.returncode, result.stderr) == (0, "")


def test_migrate_keeps_running_under_honcho_which_stops_all_when_one_ends(services: Services) -> None:
    env = {"DATABASE_URL": services.database_url, "HONCHO_PROCESS_NAME": "release.1"}
    with started("migrate", env=env) as process:
        assert process.stdout is not None
        assert (
            process.stdout.readline()
            == "the schema is up to date; waiting for the end, because honcho stops every process when one ends\n"
        )
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://u:hunter2@127.0.0.1:1/x", "DATABASE_URL: Postgres cannot be reached"),
        ("", "DATABASE_URL is not set"),
    ],
)
def test_migrate_reports_an_error_in_one_line(url: str, complaint: str) -> None:
    result = longhaul("migrate", env={"DATABASE_URL": url})
    assert result.returncode != 0
    assert one_line(result).startswith(f"longhaul: {complaint}")
    assert "hunter2" not in result.stderr


def test_flower_opens_for_its_password_alone(services: Services, tmp_path: Path) -> None:
    port = free_port()
    env = {"REDIS_URL": services.redis_url, "LONGHAUL_HOME": str(tmp_path), "LONGHAUL_FLOWER_PORT": str(port)}
    with started("flower", env=env) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def status(auth: tuple[str, str] | None) -> int:
            try:
                return client.get("/tasks", auth=auth).status_code
            except httpx.TransportError:
                assert process.poll() is None
                return 0

        until_sync(lambda: status(None), 60.0, "flower to listen")
        user, _, password = (tmp_path / "flower-auth").read_text().strip().partition(":")
        assert status(None) == 401
        assert status((user, "wrong")) == 401
        assert status((user, password)) == 200
        arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert password not in arguments
        assert (urlsplit(services.redis_url).password or "?") not in arguments
    states = list(tmp_path.glob("flower.db*"))  # the dbm module adds the suffix
    assert states
    assert all(file.stat().st_mode & 0o077 == 0 for file in states)
