"""How services start: side by side, and all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.local.children import Program
from app.local.errors import LocalError
from app.local.services.embedded_services import launch_all
from tests.support.waiting import until

PATIENCE_SECONDS = 60.0


class Paper:
    """A service that is a shell command, and ready when `ready` says so."""

    variable = url = ""

    def __init__(self, name: str, command: str, ready: Callable[[], Awaitable[bool]]) -> None:
        self.name = name
        self.ready = ready
        self._command = command

    async def prepare(self) -> Program:
        return Program(("/bin/sh", "-c", self._command), {"PATH": "/usr/bin:/bin"}, Path("/"))

    async def recover(self, failures: int) -> bool:
        return False


def sleeper(folder: Path) -> str:
    """A command that runs until it is stopped, and then makes the file `stopped`."""
    return f"trap 'touch {folder}/stopped; exit' TERM; touch {folder}/began; while :; do sleep 0.1; done"


async def always() -> bool:
    return True


async def never() -> bool:
    return False


@pytest.mark.parametrize("ready", [always, never])
async def test_if_a_service_cannot_start_the_other_one_is_stopped(
    tmp_path: Path, ready: Callable[[], Awaitable[bool]]
) -> None:
    broken = f"while ! [ -e {tmp_path}/began ]; do sleep 0.1; done; echo no room; exit 3"
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(LocalError, match="two did not start: no room"):
            await launch_all([Paper("one", sleeper(tmp_path), ready), Paper("two", broken, never)])
    assert (tmp_path / "stopped").exists()


async def test_services_that_are_still_starting_are_stopped_when_longhaul_is(tmp_path: Path) -> None:
    launching = asyncio.create_task(launch_all([Paper("one", sleeper(tmp_path), never)]))
    await until((tmp_path / "began").exists, PATIENCE_SECONDS)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert (tmp_path / "stopped").exists()
