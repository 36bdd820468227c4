"""`python -m workers.toolservers.python` as a process, and calls of its tool by the SDK's client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from anyio import BrokenResourceError, ClosedResourceError
from mcp import Client

from tests.support.processes import alive
from tests.support.tool_process import Process, address, tool_process
from tests.support.waiting import until_sync

MODULE = "workers.toolservers.python"
PROGRAM = (sys.executable, "-m", MODULE)


@dataclass(frozen=True, slots=True)
class PythonServer:
    url: str
    log: Path
    process: Process

    def jailers(self) -> list[psutil.Process]:
        """The jailers, one for each sandbox: the server starts no other process."""
        try:
            return psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def interpreters(self) -> list[psutil.Process]:
        """The interpreters of all sandboxes."""
        return [child for child in self.process_tree() if not child.children()]

    def pipes(self) -> int:
        """The number of pipe ends that the server holds. It closes those of a sandbox once it knows that it ended."""
        count = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed in the meantime
                count += str(each.readlink()).startswith("pipe:")
        return count

    def process_tree(self) -> list[psutil.Process]:
        """All processes below the server, including sandboxes."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@contextmanager
def python_server(log: Path, *options: str, as_nobody: bool = False, **environment: str) -> Iterator[PythonServer]:
    """Runs the server until the block ends; then it must stop on SIGTERM, with all processes below it."""
    with tool_process(MODULE, log, *options, as_nobody=as_nobody, **environment) as process:
        server = PythonServer("", log, process)
        try:
            server = PythonServer(address(process, log), log, process)
            yield server
        finally:
            left = server.process_tree()
    gone(left)


def gone(processes: list[psutil.Process]) -> None:
    """Waits until all processes have ended."""
    until_sync(lambda: not any(map(alive, processes)), what="processes of a sandbox are gone")


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a call."""

    text: str
    stdout: str
    stderr: str
    result: str | None
    error: str | None
    killed: str | None
    state_lost: bool
    failed: bool

    @property
    def last_line(self) -> str:
        """The last line of the traceback."""
        return (self.error or "").strip().rpartition("\n")[2]


async def run(client: Client, code: str) -> CellResult:
    """Runs a cell."""
    result = await client.call_tool("python", {"code": code})
    text = result.content[0]
    assert text.type == "text"
    fields: Any = result.structured_content
    return CellResult(text=text.text, failed=bool(result.is_error), **fields)


@asynccontextmanager
async def notebook(server: PythonServer) -> AsyncIterator[Client]:
    """A client with its own session.

    mcp's client raises as it closes, if the answer to a cancelled call comes in that moment.
    """
    closing = False
    try:
        async with Client(server.url) as client:
            yield client
            closing = True
    except* (BrokenResourceError, ClosedResourceError):
        if not closing:
            raise
