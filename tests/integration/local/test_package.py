"""`pip install .` into an empty virtual environment: every command starts, from any folder."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.local.ports import free_port
from tests.support.clusters import add_cluster
from tests.support.scripted import models_of
from tests.support.services import Services, open_folder
from tests.support.waiting import PATIENCE_SECONDS, until_sync
from tests.support.wheels import install

pytestmark = pytest.mark.long

START_SECONDS = 120.0


@pytest.fixture(scope="module")
def command() -> Iterator[Path]:
    """`longhaul`, with its declared dependencies alone."""
    with open_folder() as folder:
        yield install(folder)


@pytest.fixture
def environment(services: Services, folder: Path) -> dict[str, str]:
    """As in an empty shell."""
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "DATABASE_URL": services.owner_url,
        "REDIS_URL": services.redis_url,
        "LONGHAUL_HOME": str(folder / "home"),
        "LONGHAUL_PORT": str(free_port()),
        "LONGHAUL_FLOWER_PORT": str(free_port()),
    }


def ended(command: Path, *args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end."""
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run([command, *args], env=env, cwd=elsewhere, capture_output=True, text=True, timeout=60)


@contextmanager
def running(
    command: Path, *args: str, env: dict[str, str], until: Callable[[str], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until the block ends; the block begins once `until` is true of its output."""
    with tempfile.TemporaryDirectory() as elsewhere, (Path(elsewhere) / "log").open("w+b") as log:
        process = subprocess.Popen([command, *args], env=env, cwd=elsewhere, stdout=log, stderr=log)

        def output() -> str:
            return Path(log.name).read_text()

        def started() -> bool:
            assert process.poll() is None, output()
            return until(output())

        try:
            until_sync(started, START_SECONDS, output)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def answers(url: str, status: int) -> Callable[[str], bool]:
    def check(_: str) -> bool:
        try:
            return httpx.get(url, timeout=5).status_code == status
        except httpx.TransportError:
            return False

    return check


@pytest.fixture
def migrated(command: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment, after `longhaul migrate`."""
    result = ended(command, "migrate", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    return environment


def test_the_package_brings_what_the_api_and_maintenance_need(command: Path, migrated: dict[str, str]) -> None:
    base = f"http://127.0.0.1:{migrated['LONGHAUL_PORT']}"
    env = {**migrated, "LONGHAUL_QUEUE_TIMEOUT_SECONDS": "0.1"}
    with running(command, "api", env=env, until=answers(f"{base}/health/live", 200)):
        assert httpx.get(f"{base}/docs", timeout=PATIENCE_SECONDS).status_code == 200
        model = httpx.get(f"{base}/v1/models", timeout=PATIENCE_SECONDS).json()["data"][0]["id"]
        body = {"model": model, "input": "hello", "background": True}
        queued = httpx.post(f"{base}/v1/responses", json=body, timeout=PATIENCE_SECONDS).json()
        url = f"{base}/v1/responses/{queued['id']}"

        def was_looked_after(_: str) -> bool:
            return httpx.get(url, timeout=PATIENCE_SECONDS).json()["status"] == "failed"

        with running(command, "maintenance", env=env, until=was_looked_after):
            assert httpx.get(url, timeout=PATIENCE_SECONDS).json()["error"]["reason"] == "queue_timeout"


def test_longhaul_up_runs_everything_without_a_checkout(
    command: Path, environment: dict[str, str], folder: Path
) -> None:
    models = folder / "models.toml"
    models.write_text(models_of("scripted"))
    add_cluster(folder / ".longhaul")
    env = {**environment, "LONGHAUL_MODELS": str(models)}
    del env["DATABASE_URL"], env["REDIS_URL"], env["LONGHAUL_HOME"]
    base = f"http://127.0.0.1:{env['LONGHAUL_PORT']}"
    with running(command, "up", env=env, until=answers(f"{base}/health/ready?model=scripted", 200)):
        body = {"model": "scripted", "input": "/say hello"}
        answer = httpx.post(f"{base}/v1/responses", json=body, timeout=60).json()
        assert answer["output"][0]["content"][0]["text"] == "hello"
        flower = answers(f"http://127.0.0.1:{env['LONGHAUL_FLOWER_PORT']}/tasks", 401)
        until_sync(lambda: flower(""), START_SECONDS, "Flower")
