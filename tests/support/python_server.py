"""`python -m workers.toolservers.python` as a process, and calls of its tool by the SDK's client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from mcp import Client

from tests.support.tool_process import Process, address, tool_process
from tests.support.unprivileged import command
from tests.support.waiting import until_sync

PROGRAM = (sys.executable, "-m", "workers.toolservers.python")


@dataclass(frozen=True, slots=True)
class PythonServer:
    url: str
    log: Path
    process: Process

    def jailers(self) -> list[psutil.Process]:
        """One for each sandbox: it starts nothing else."""
        try:
            return psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def interpreters(self) -> list[psutil.Process]:
        """The processes that run code, of all sandboxes."""
        return [child for child in self.process_tree() if not child.children()]

    def pipes(self) -> int:
        """How many ends of pipes the server holds: some for each sandbox, until it knows that it has ended."""
        count = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it is closed meanwhile
                count += str(each.readlink()).startswith("pipe:")
        return count

    def process_tree(self) -> list[psutil.Process]:
        """Everything that it started, however deep: sandboxes too."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@contextmanager
def python_server(log: Path, *options: str, as_nobody: bool = False, **environment: str) -> Iterator[PythonServer]:
    """Runs until the block ends; then it is told to stop, and has to, with all that it started."""
    program = command(*PROGRAM) if as_nobody else PROGRAM
    with tool_process(program, log, *options, **environment) as process:
        server = PythonServer("", log, process)
        try:
            server = PythonServer(address(process, log), log, process)
            yield server
        finally:
            left = server.process_tree()
    gone(left)


def gone(processes: list[psutil.Process]) -> None:
    """Waits until none of them is left."""
    until_sync(lambda: not any(runs(process) for process in processes), what="processes of a sandbox are gone")


def runs(process: psutil.Process) -> bool:
    """Whether it lives; one that is dead and not collected does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True, slots=True)
class CellResult:
    """What came of a call."""

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
        """Of the traceback."""
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
    """A session of its own."""
    async with Client(server.url) as client:
        yield client
