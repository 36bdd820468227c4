"""The clients for Node that `make test` installs into tests/clients/node: where they are, and how Python calls them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.target import Target

FOLDER = Path(__file__).resolve().parents[1] / "clients" / "node"
PACKAGES = FOLDER / "node_modules"
INSTALLED = PACKAGES / ".installed"
"""What the Makefile touches after `npm ci`."""
CLOSE_SECONDS = 10.0
TIMEOUT_SECONDS = 120.0


def node() -> str:
    """The path of `node`. Skips the test where there is none, or where the clients are not installed."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("there is no `node`: install Node 20 or newer, then run `make clients`")
    if not INSTALLED.exists():
        pytest.skip("the clients for Node are not installed: run `make clients`")
    return found


def program(place: str) -> Path:
    """The program at a pattern below node_modules. Skips the test if it is not made for this platform."""
    node()
    found = sorted(PACKAGES.glob(place))
    if not found:
        pytest.skip(f"there is no {place} for this platform")
    return found[0]


class ClientFailed(Exception):
    """The client raised an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['name']}: {error['message']}\n{error['stack']}")
        self.name: str = error["name"]
        self.status: int | None = error["status"]
        self.message: str = error["message"]


class NodeClient:
    """A process that calls the functions of one module of tests/clients/node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, function: str, target: Target, /, *, websocket: bool = False, **args: Any) -> Any:
        """Returns what the function returned. Raises ClientFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        to = {"url": target.url, "model": target.model, "websocket": websocket}
        self._process.stdin.write(json.dumps({"function": function, "to": to, "args": args}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ClientFailed(answer["error"])
        return answer.get("result")


@contextmanager
def node_client(module: str) -> Iterator[NodeClient]:
    """Starts the process, and ends it with the block."""
    process = subprocess.Popen(
        [node(), "serve.mjs", module], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield NodeClient(process)
    finally:
        process.communicate(timeout=CLOSE_SECONDS)


async def json_lines(
    command: Sequence[str], prompt: str, folder: Path, env: Mapping[str, str], end: str
) -> list[dict[str, Any]]:
    """Runs a client on a prompt; returns the events that it printed, of which the last one is to be `end`."""
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        printed, errors = await asyncio.wait_for(process.communicate(prompt.encode()), TIMEOUT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    events: list[dict[str, Any]] = [json.loads(line) for line in printed.decode().splitlines()]
    assert events and events[-1]["type"] == end, (events[-3:], errors.decode())
    return events
