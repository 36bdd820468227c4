"""`python -m workers.toolservers.browser` as a process, and calls of its tools by the SDK's client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client

from tests.support.waiting import until_sync

COMMAND = (sys.executable, "-m", "workers.toolservers.browser")
START_SECONDS = 60.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BrowserServer:
    url: str
    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def browser_server(log: Path, *options: str, **environment: str) -> Iterator[BrowserServer]:
    """Runs until the block ends; then it is told to stop, and has to."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, "--port", "0", *options],
            env={**os.environ, **environment},
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield BrowserServer(
            until_sync(lambda: _address_in(log, process), START_SECONDS, "the server listens"), log, process
        )
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    text = log.read_text()
    assert process.poll() is None, text
    found = re.search(r"browser tools at (http://\S+)", text)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a call."""

    text: str
    facts: dict[str, Any] | None
    failed: bool


async def call(client: Client, tool: str, **arguments: Any) -> Called:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return Called(content.text, result.structured_content, bool(result.is_error))


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """What the tool says when it fails, as it has to: one sentence, one line."""
    called = await call(client, tool, **arguments)
    assert called.failed, called.text
    assert "\n" not in called.text and called.text.endswith(".")
    return called.text
