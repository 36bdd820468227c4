"""MCP servers that are commands: none outlives its worker, and none can send more than a worker can hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.process import CHECKOUT
from config.tools import McpServer
from tests.integration.mcp.cases import DONE, answer
from tests.support.logs import items, text_of
from tests.support.processes import alive
from tests.support.tool_servers import ToolProcess, call, mcp_tool
from tests.support.waiting import until, until_sync
from workers.mcp import session
from workers.mcp.session import SUPERVISOR, Session

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    time.sleep(60)
"""
"""Ignores SIGTERM and the end of its input; writes its pid, its parent's and its child's into a file."""
WORKER = """
import asyncio, sys
from config.tools import McpServer
from workers.mcp.session import Session
async def main():
    await Session(McpServer("x", "mcp", None, tuple(sys.argv[1:])), {}).list_tools()
asyncio.run(main())
"""


def program(file: Path) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", STUBBORN, str(file))


def pids(file: Path) -> list[int]:
    """The process ids of the server, its supervisor and its children; empty until the server runs."""
    return [int(word) for word in file.read_text().split()] if file.exists() else []


@contextmanager
def holder(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session at a stubborn server."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, *program(file)], cwd=CHECKOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in pids(file):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_server_that_ignores_everything_dies_with_its_worker_and_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with holder(file) as process:
        started = until_sync(lambda: pids(file), what="the server runs")
        assert process.poll() is None
        process.kill()
        process.wait()
        until_sync(lambda: not any(map(alive, started)), what="the server, its supervisor and what it started are gone")


def test_killing_a_supervisor_kills_its_server(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with holder(file):
        server, supervisor, *_ = until_sync(lambda: pids(file), what="the server runs")
        os.kill(supervisor, signal.SIGKILL)
        until_sync(lambda: not alive(server), what="the server is gone")


def test_a_supervisor_whose_worker_is_gone_already_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    supervisor = [*SUPERVISOR, "1", "1000", *program(file)]
    assert subprocess.run(supervisor, stdin=subprocess.DEVNULL, timeout=60).returncode != 0
    assert not file.exists()


async def test_children_of_a_server_end_with_its_session(tmp_path: Path) -> None:
    file, server = tmp_path / "pids", ToolProcess(tmp_path).command().command or ()
    script = 'sleep 600 & echo $! > "$0"; exec "$@"'
    held = Session(McpServer("x", "mcp", None, ("sh", "-c", script, str(file), *server)), {})
    assert await held.list_tools()
    started = pids(file)
    assert any(map(alive, started))
    await held.close()
    await until(lambda: not any(map(alive, started)))


def test_all_output_of_a_server_before_its_end_is_passed_on() -> None:
    script = "print('x' * 999999, flush=True); print('last', end='')"
    supervisor = [*SUPERVISOR, str(os.getpid()), "1000000"]
    done = subprocess.run([*supervisor, sys.executable, "-c", script], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.stdout == b"x" * 999_999 + b"\nlast"


@pytest.mark.parametrize("end", ["", "\\n"])
def test_a_line_that_is_too_long_ends_the_server(end: str) -> None:
    script = f"import time; print('short'); print('x' * 300000, end='{end}', flush=True); time.sleep(600)"
    supervisor = [*SUPERVISOR, str(os.getpid()), "100000"]
    command = [*supervisor, sys.executable, "-c", script]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert len(done.stdout) <= 100_000


async def test_a_message_without_an_end_fails_its_call_and_the_next_one_is_served(
    db: Database, pubsub: PubSub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_MESSAGE_BYTES", 100_000)
    script = (call("local__endless"), call("local__echo", text="x"), DONE)
    row = await answer(db, pubsub, (ToolProcess(tmp_path).command(),), *script, tools=[mcp_tool("local")])
    first, second = items(row, "mcp_call")
    assert (first["status"], first["error"]["message"]) == ("failed", "The MCP server 'local' cannot be reached.")
    assert second["output"] == "echo x"
    assert text_of(row) == "It said: echo x"
