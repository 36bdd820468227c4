"""Longhaul's wheel: the same bytes from the same sources, one folder, and every command starts from any folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.local.ports import free_port
from config.process import CHECKOUT
from config.version import VERSION
from tests.support.clusters import add_cluster
from tests.support.scripted import models_of
from tests.support.services import open_folder
from tests.support.waiting import PATIENCE_SECONDS, until_sync
from tests.support.wheels import build, install

pytestmark = pytest.mark.long

START_SECONDS = 120.0


@pytest.fixture(scope="module")
def command() -> Iterator[Path]:
    """`longhaul`, with its declared dependencies alone."""
    with open_folder() as folder:
        yield install(folder)


@contextmanager
def running(
    command: Path, *args: str, env: dict[str, str], until: Callable[[str], bool]
) -> Iterator[Callable[[], str]]:
    """The output of a command that runs until the block ends; the block begins once `until` is true of its output."""
    with tempfile.TemporaryDirectory() as elsewhere, (Path(elsewhere) / "log").open("w+b") as log:
        process = subprocess.Popen([command, *args], env=env, cwd=elsewhere, stdout=log, stderr=log)

        def output() -> str:
            return Path(log.name).read_text()

        def started() -> bool:
            assert process.poll() is None, output()
            return until(output())

        try:
            until_sync(started, START_SECONDS, output)
            yield output
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


def test_two_builds_of_the_same_sources_are_equal_byte_for_byte(tmp_path: Path) -> None:
    copy, epoch = tmp_path / "copy", {"SOURCE_DATE_EPOCH": "1700000000"}
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if not name.startswith(("docs/", "tests/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CHECKOUT / name, copy / name, follow_symlinks=False)  # with today's time and other rights
    first, second = build(CHECKOUT, tmp_path / "1", **epoch), build(copy, tmp_path / "2", **epoch)
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    with zipfile.ZipFile(first[1]) as wheel:
        assert {info.date_time for info in wheel.infolist()} == {(2023, 11, 14, 22, 13, 20)}
        names = {info.filename.partition("/")[0] for info in wheel.infolist()}
        assert names == {"longhaul_server", f"longhaul_server-{VERSION}.dist-info"}


def test_without_vllm_longhaul_up_says_what_to_install(command: Path, folder: Path) -> None:
    env = {"PATH": os.defpath, "HOME": str(folder)}
    ended = subprocess.run(
        [command, "up"], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert "model 'longhaul-demo': there is no vLLM here; install longhaul-server[cpu]" in ended.stderr


def test_longhaul_up_runs_everything_without_a_checkout(command: Path, folder: Path) -> None:
    (folder / "models.toml").write_text(models_of("scripted"))
    add_cluster(folder / ".longhaul")
    env = {"PATH": os.defpath, "HOME": str(folder), "LONGHAUL_MODELS": str(folder / "models.toml")}
    env |= {"LONGHAUL_PORT": str(free_port()), "LONGHAUL_FLOWER_PORT": str(free_port())}
    base = f"http://127.0.0.1:{env['LONGHAUL_PORT']}"
    with running(command, "up", env=env, until=answers(f"{base}/health/ready?model=scripted", 200)) as output:
        assert httpx.get(f"{base}/docs", timeout=PATIENCE_SECONDS).status_code == 200
        body = {"model": "scripted", "input": "/say hello"}
        answer = httpx.post(f"{base}/v1/responses", json=body, timeout=60).json()
        assert answer["output"][0]["content"][0]["text"] == "hello"
        flower = answers(f"http://127.0.0.1:{env['LONGHAUL_FLOWER_PORT']}/tasks", 401)
        until_sync(lambda: flower(""), START_SECONDS, "Flower")
        assert " ended with " not in output(), "each process has all that it imports, maintenance, too"
    packages = next(command.parent.parent.glob("lib/python*/site-packages"))
    assert not any((packages / name).exists() for name in ("app", "config", "migrations", "workers"))
