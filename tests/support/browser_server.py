"""`python -m workers.toolservers.browser` as a process, and calls of its tools by the SDK's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client

from tests.support.tool_process import Process, address, tool_process

MODULE = "workers.toolservers.browser"


@dataclass(frozen=True, slots=True)
class BrowserServer:
    url: str
    log: Path
    process: Process


@contextmanager
def browser_server(log: Path, *options: str, **environment: str) -> Iterator[BrowserServer]:
    """Runs the server until the block ends; then it must stop on SIGTERM."""
    with tool_process(MODULE, log, *options, **environment) as process:
        yield BrowserServer(address(process, log), log, process)


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call."""

    text: str
    facts: dict[str, Any] | None
    failed: bool


async def call(client: Client, tool: str, **arguments: Any) -> Called:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return Called(content.text, result.structured_content, bool(result.is_error))


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The message of a call that must fail: one sentence on one line."""
    called = await call(client, tool, **arguments)
    assert called.failed, called.text
    assert "\n" not in called.text and called.text.endswith(".")
    return called.text
