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
from config.worker_readiness import is_ready
from tests.integration.local.test_up import one_line
from tests.support.scripted import models_of
from tests.support.services import Services
from tests.support.upping import LONGHAUL, longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync
from tests.unit.config.test_service_links import links_of


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
        process.communicate(timeout=PATIENCE_SECONDS)


def test_migrate_twice_is_as_good_as_once(services: Services) -> None:
    for _ in range(2):
        result = longhaul("migrate", env={"DATABASE_URL": services.owner_url})
        assert (result.returncode, result.stderr) == (0, "")


def test_no_command_takes_the_service_links_of_kubernetes_for_settings(services: Services) -> None:
    links = {**links_of("longhaul"), **links_of("longhaul-flower"), **links_of("flower")}
    for command in (["migrate"], ["models"], ["tools", "python", "--help"]):
        result = longhaul(*command, env={"DATABASE_URL": services.owner_url, **links})
        assert (result.returncode, result.stderr) == (0, ""), command


def test_migrate_keeps_running_under_honcho_which_stops_all_when_one_ends(services: Services) -> None:
    env = {"DATABASE_URL": services.owner_url, "HONCHO_PROCESS_NAME": "release.1"}
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
    urls = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url}
    env = {**urls, "LONGHAUL_HOME": str(tmp_path), "LONGHAUL_FLOWER_PORT": str(port)}
    url = f"http://127.0.0.1:{port}"
    with started("flower", env=env) as process, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:

        def status(auth: tuple[str, str] | None) -> int:
            try:
                return client.get("/tasks", auth=auth).status_code
            except httpx.TransportError:
                assert process.poll() is None
                return 0

        until_sync(lambda: status(None), what="flower to listen")
        user, _, password = (tmp_path / "flower-auth").read_text().strip().partition(":")
        assert status(None) == 401
        assert status((user, "wrong")) == 401
        assert status((user, password)) == 200
        arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert password not in arguments
        for each in urls.values():
            assert (urlsplit(each).password or "?") not in arguments
    states = list(tmp_path.glob("flower.db*"))  # the dbm module adds the suffix
    assert states
    assert all(file.stat().st_mode & 0o077 == 0 for file in states)


def worker_env(services: Services, folder: Path, **env: str) -> dict[str, str]:
    (folder / "models.toml").write_text(models_of("scripted"))
    urls = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url}
    return {**urls, "LONGHAUL_MODELS": str(folder / "models.toml"), "LONGHAUL_READY_FILE": str(folder / "ready"), **env}


def test_a_worker_is_ready_while_it_is_registered_and_neither_frozen_nor_draining(
    services: Services, tmp_path: Path
) -> None:
    file = tmp_path / "ready"
    file.write_text("99999999999\n")  # Left by a worker that was killed.
    env = worker_env(services, tmp_path, LONGHAUL_LEASE_SECONDS="1", LONGHAUL_SHUTDOWN_GRACE_SECONDS="600")
    assert longhaul("migrate", env={**env, "DATABASE_URL": services.owner_url}).returncode == 0
    with started("worker", env=env) as process:
        until_sync(lambda: not file.exists(), what="the old file to go")
        until_sync(lambda: is_ready(file), what="a ready worker")
        assert longhaul("ready", env=env).returncode == 0
        process.send_signal(signal.SIGSTOP)
        until_sync(lambda: not is_ready(file), what="the lease to run out")
        result = longhaul("ready", env=env)
        assert (result.returncode, one_line(result)) == (1, "longhaul: the worker is not ready")
        process.send_signal(signal.SIGCONT)
        until_sync(lambda: is_ready(file), what="the worker to go on")
        process.send_signal(signal.SIGTERM)
        until_sync(lambda: not file.exists(), what="the worker to drain")


def test_a_ready_file_that_cannot_be_written_ends_the_start_with_one_line(services: Services, tmp_path: Path) -> None:
    env = worker_env(services, tmp_path, LONGHAUL_READY_FILE=str(tmp_path / "none" / "ready"))
    result = longhaul("worker", env=env)
    assert result.returncode == 2
    assert one_line(result).startswith(f"longhaul: LONGHAUL_READY_FILE: cannot write {tmp_path}/none/ready: No such")


def test_ready_without_a_file_says_which_variable_is_missing() -> None:
    result = longhaul("ready", env={"LONGHAUL_READY_FILE": ""})
    assert result.returncode == 2
    assert one_line(result).startswith("longhaul: LONGHAUL_READY_FILE is not set")


def test_the_readiness_of_the_api_is_what_its_route_says(services: Services, tmp_path: Path) -> None:
    env = worker_env(services, tmp_path, LONGHAUL_PORT=str(free_port()))
    assert one_line(longhaul("ready", "--api", env=env)).startswith("longhaul: the API cannot be reached")
    with started("api", env=env) as process:
        until_sync(lambda: readiness(env) == 200 or process.poll() is not None, what="a ready API")
        assert longhaul("ready", "--api", env=env).returncode == 0
        services.postgres.stop()
        until_sync(lambda: readiness(env) == 503, what="the API to notice")
        assert longhaul("ready", "--api", env=env).stderr == "longhaul: the API is not ready (status 503)\n"
        services.postgres.start()


def readiness(env: dict[str, str]) -> int | None:
    """What the API's route says; None while nobody listens."""
    try:
        return httpx.get(f"http://127.0.0.1:{env['LONGHAUL_PORT']}/health/ready", timeout=PATIENCE_SECONDS).status_code
    except httpx.TransportError:
        return None
