"""What each process writes: run where all file systems are read-only, as in a container."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import text

from app.access.secret import new_secret
from app.local.ports import free_port
from app.store.database import Database
from config.worker_readiness import is_ready
from tests.integration.local.test_programs import readiness
from tests.support.celery_processes import ROOT, Process
from tests.support.read_only import command
from tests.support.rows import alive
from tests.support.scripted import models_of
from tests.support.services import Services
from tests.support.upping import LONGHAUL, longhaul
from tests.support.waiting import until_sync

T = TypeVar("T")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes file systems read-only")


@pytest.fixture
def env(services: Services, tmp_path: Path) -> dict[str, str]:
    models = tmp_path / "models.toml"
    models.write_text(models_of("scripted"))
    assert longhaul("migrate", env={"DATABASE_URL": services.owner_url}).returncode == 0
    urls = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url}
    return {**urls, "LONGHAUL_MODELS": str(models), "LONGHAUL_PORT": str(free_port())}


@contextmanager
def read_only(*arguments: str, env: dict[str, str], log: Path) -> Iterator[Process]:
    """A command on read-only file systems; it must write no traceback."""
    process = Process(command(*LONGHAUL, *arguments), env, log)
    try:
        yield process
        process.send_signal()
        process.wait()
        assert "Traceback" not in process.text and "Read-only" not in process.text
    finally:
        process.kill()


def test_migrate_writes_nothing_if_it_is_given_the_admin_key(env: dict[str, str], tmp_path: Path) -> None:
    keys = {"LONGHAUL_AUTH": "keys", "LONGHAUL_ADMIN_KEY": new_secret()}
    with read_only("migrate", env={**env, **keys}, log=tmp_path / "log") as process:
        assert process.wait() == 0, process.text


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_api_writes_nothing(env: dict[str, str], tmp_path: Path, processes: int) -> None:
    several = {**env, "LONGHAUL_API_PROCESSES": str(processes)}
    with read_only("api", env=several, log=tmp_path / "log") as process:

        def is_up() -> bool:
            assert process.is_running, process.text
            return readiness(env) == 200

        until_sync(is_up, what=lambda: process.text)


def test_maintenance_writes_nothing(env: dict[str, str], tmp_path: Path) -> None:
    asyncio.run(_of_a_dead_worker(env, alive))
    with read_only("maintenance", env=env, log=tmp_path / "log") as process:

        def has_worked() -> bool:
            assert process.is_running, process.text
            return not asyncio.run(_of_a_dead_worker(env, _is_there))

        until_sync(has_worked, what=lambda: process.text)


async def _of_a_dead_worker(env: dict[str, str], act: Callable[[Database, str, float], Awaitable[T]]) -> T:
    db = Database(env["DATABASE_URL"], 2)
    try:
        return await act(db, "dead", 0.0)
    finally:
        await db.close()


async def _is_there(db: Database, worker: str, _: float) -> bool:
    return bool(await db.execute(text("SELECT 1 FROM workers WHERE id = :id"), {"id": worker}))


def test_a_worker_writes_its_ready_file_alone(env: dict[str, str], tmp_path: Path) -> None:
    """Its engine may need more: vLLM's caches and Triton's kernels lie in HOME and TMPDIR."""
    file = Path(f"/dev/shm/longhaul-{os.getpid()}-ready")
    with read_only("worker", env={**env, "LONGHAUL_READY_FILE": str(file)}, log=tmp_path / "log") as process:
        until_sync(lambda: is_ready(file) or not process.is_running, what=lambda: process.text)
        assert process.is_running, process.text


def test_flower_needs_a_folder_and_says_so(env: dict[str, str], tmp_path: Path) -> None:
    auth = {"LONGHAUL_FLOWER_AUTH": "longhaul:secret", "LONGHAUL_HOME": "/srv/longhaul"}
    process = subprocess.run(
        command(*LONGHAUL, "flower"),
        cwd=ROOT, env={**os.environ, **env, **auth}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 1
    assert process.stderr == "longhaul: LONGHAUL_HOME: cannot use /srv/longhaul: Read-only file system\n"
