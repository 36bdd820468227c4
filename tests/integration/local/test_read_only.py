"""What each process writes, and when it is ready: run where all file systems are read-only, as in a container."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from sqlalchemy import text

from app.access.secret import new_secret
from app.local.ports import free_port
from app.store.database import Database
from config.worker_readiness import is_ready
from tests.support.celery_processes import ForkedProcess
from tests.support.forks import READ_ONLY
from tests.support.rows import alive
from tests.support.scripted import models_of
from tests.support.services import Services
from tests.support.upping import longhaul, one_line
from tests.support.waiting import PATIENCE_SECONDS, until_sync

T = TypeVar("T")


@pytest.fixture
def env(services: Services, migrated: str, tmp_path: Path) -> dict[str, str]:
    models = tmp_path / "models.toml"
    models.write_text(models_of("scripted"))
    urls = {"DATABASE_URL": migrated, "REDIS_URL": services.redis_url}
    return {**urls, "LONGHAUL_MODELS": str(models), "LONGHAUL_PORT": str(free_port())}


@contextmanager
def read_only(*arguments: str, env: dict[str, str], log: Path) -> Iterator[ForkedProcess]:
    """A command on read-only file systems; it must write no traceback."""
    process = ForkedProcess([*arguments], env, log, READ_ONLY)
    try:
        yield process
        process.send_signal()
        process.wait()
        assert "Traceback" not in process.text and "Read-only" not in process.text
    finally:
        process.kill()


def test_migrate_writes_nothing_if_it_is_given_the_admin_key(
    services: Services, env: dict[str, str], tmp_path: Path
) -> None:
    keys = {"LONGHAUL_AUTH": "keys", "LONGHAUL_ADMIN_KEY": new_secret(), "DATABASE_URL": services.owner_url}
    with read_only("migrate", env={**env, **keys}, log=tmp_path / "log") as process:
        assert process.wait() == 0, process.text


def readiness(env: dict[str, str]) -> int | None:
    """What the API's route says; None while nobody listens."""
    try:
        return httpx.get(f"http://127.0.0.1:{env['LONGHAUL_PORT']}/health/ready", timeout=PATIENCE_SECONDS).status_code
    except httpx.TransportError:
        return None


@contextmanager
def read_only_api(env: dict[str, str], log: Path) -> Iterator[None]:
    with read_only("api", env=env, log=log) as process:

        def is_up() -> bool:
            assert process.is_running, process.text
            return readiness(env) == 200

        until_sync(is_up, what=lambda: process.text, pause=0.1)
        yield


def test_the_api_writes_nothing_and_its_readiness_is_what_its_route_says(
    services: Services, env: dict[str, str], tmp_path: Path
) -> None:
    assert one_line(longhaul("ready", "--api", env=env)).startswith("longhaul: the API cannot be reached")
    with read_only_api(env, tmp_path / "log"):
        assert longhaul("ready", "--api", env=env).returncode == 0
        services.postgres.stop()
        until_sync(lambda: readiness(env) == 503, what="the API to notice")
        assert longhaul("ready", "--api", env=env).stderr == "longhaul: the API is not ready (status 503)\n"
        services.postgres.start()


@pytest.mark.long
def test_an_api_of_two_processes_writes_nothing(env: dict[str, str], tmp_path: Path) -> None:
    with read_only_api({**env, "LONGHAUL_API_PROCESSES": "2"}, tmp_path / "log"):
        pass


def test_maintenance_writes_nothing(env: dict[str, str], tmp_path: Path) -> None:
    asyncio.run(_of_a_dead_worker(env, alive))
    with read_only("maintenance", env=env, log=tmp_path / "log") as process:

        def has_worked() -> bool:
            assert process.is_running, process.text
            return not asyncio.run(_of_a_dead_worker(env, _is_there))

        until_sync(has_worked, what=lambda: process.text, pause=0.25)  # each look connects


async def _of_a_dead_worker(env: dict[str, str], act: Callable[[Database, str, float], Awaitable[T]]) -> T:
    db = Database(env["DATABASE_URL"], 2)
    try:
        return await act(db, "dead", 0.0)
    finally:
        await db.close()


async def _is_there(db: Database, worker: str, _: float) -> bool:
    return bool(await db.execute(text("SELECT 1 FROM workers WHERE id = :id"), {"id": worker}))


@pytest.fixture
def ready_file() -> Iterator[Path]:
    """In the memory that even a read-only container may write."""
    file = Path(f"/dev/shm/longhaul-{os.getpid()}-ready")
    file.write_text("99999999999\n")  # left by a worker that was killed
    yield file
    file.unlink(missing_ok=True)


def test_a_worker_writes_its_ready_file_alone_while_it_is_registered_and_neither_frozen_nor_draining(
    env: dict[str, str], tmp_path: Path, ready_file: Path
) -> None:
    """Its engine may need more: vLLM's caches and Triton's kernels lie in HOME and TMPDIR."""
    env |= {"LONGHAUL_READY_FILE": str(ready_file), "LONGHAUL_LEASE_SECONDS": "1"}
    with read_only("worker", env={**env, "LONGHAUL_SHUTDOWN_GRACE_SECONDS": "600"}, log=tmp_path / "log") as process:
        until_sync(lambda: not ready_file.exists(), what="the old file to go")
        until_sync(lambda: is_ready(ready_file) or not process.is_running, what=lambda: process.text)
        assert process.is_running, process.text
        assert longhaul("ready", env=env).returncode == 0
        process.send_signal(signal.SIGSTOP)
        until_sync(lambda: not is_ready(ready_file), what="the lease to run out")
        result = longhaul("ready", env=env)
        assert (result.returncode, one_line(result)) == (1, "longhaul: the worker is not ready")
        process.send_signal(signal.SIGCONT)
        until_sync(lambda: is_ready(ready_file), what="the worker to go on")
        process.send_signal(signal.SIGTERM)
        until_sync(lambda: not ready_file.exists(), what="the worker to drain")


def test_a_ready_file_that_cannot_be_written_or_is_not_named_is_one_line(env: dict[str, str], tmp_path: Path) -> None:
    unwritable = {**env, "LONGHAUL_READY_FILE": str(tmp_path / "none" / "ready")}
    for name, more, said in (
        ("worker", unwritable, f"LONGHAUL_READY_FILE: cannot write {tmp_path}/none/ready: No such"),
        ("ready", {"LONGHAUL_READY_FILE": ""}, "LONGHAUL_READY_FILE is not set"),
    ):
        result = longhaul(name, env=more)
        assert result.returncode == 2 and one_line(result).startswith(f"longhaul: {said}")


def test_flower_needs_a_folder_and_says_so(env: dict[str, str], tmp_path: Path) -> None:
    auth = {"LONGHAUL_FLOWER_AUTH": "longhaul:secret", "LONGHAUL_HOME": "/srv/longhaul"}
    process = ForkedProcess(["flower"], {**env, **auth}, tmp_path / "log", READ_ONLY)
    assert process.wait() == 1
    assert process.text == "longhaul: LONGHAUL_HOME: cannot use /srv/longhaul: Read-only file system\n"
