"""Running MCP servers (mcp_server.py), the calls that they got, and requests that use them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.local.ports import free_port
from config.process import CHECKOUT
from config.tools import McpServer
from tests.support.forks import Forked
from tests.support.waiting import until_sync
from workers.mcp.sessions import McpSessions

MODULE = "tests.support.mcp_server"
PROGRAM = (sys.executable, "-m", MODULE)


class ToolProcess:
    """One MCP server over HTTP. Servers that are commands share its `log`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._words = words
        self.folder = folder
        self.log = folder / "calls.log"
        self.port = free_port()
        self._process: Forked | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        words = [str(self.log), str(self.port), *self._words]
        self._process = Forked(MODULE, words, os.environ, Path(os.devnull))
        until_sync(self._listens, what="the MCP server listens")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops the server (SIGSTOP) until the block ends: clients stay connected, without an answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def count(self, line: str) -> int:
        return self.lines().count(line)

    def release(self, text: str) -> None:
        """Lets `slow` calls with this text end."""
        (self.folder / text).touch()

    def server(self, label: str = "tests", kind: Any = "mcp", **more: Any) -> McpServer:
        return McpServer(label, kind, self.url, **more)

    def command(self, label: str = "local", **more: Any) -> McpServer:
        # Not in the checkout's folder: the command must find its modules.
        program = ("env", f"PYTHONPATH={CHECKOUT}", *PROGRAM, str(self.log))
        return McpServer(label, "mcp", None, program, **more)

    def _listens(self) -> bool:
        try:
            httpx.get(self.url, timeout=1)
        except httpx.TransportError:
            return False
        return True


@contextmanager
def served_tools(folder: Path, *words: str) -> Iterator[ToolProcess]:
    made = ToolProcess(folder, *words)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def tool_sessions(servers: Sequence[McpServer] = (), result_bytes: int = 65536) -> McpSessions:
    """The MCP servers of a worker, with the default of LONGHAUL_TOOL_RESULT_BYTES."""
    return McpSessions(servers, result_bytes)


def mcp_tool(label: str = "tests", require_approval: Any = "never", **more: Any) -> dict[str, Any]:
    """The tool in the form of a stored request."""
    spec = {"server_label": label, "server_url": None, "server_description": None, "allowed_tools": None}
    return {"type": "mcp", **spec, "require_approval": require_approval, **more}


CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
WEB_SEARCH = {"type": "web_search", "search_context_size": "medium", "user_location": None, "filters": None}


def call(name: str, **arguments: Any) -> str:
    """A call in the form of the scripted model."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{written}</tool_call>"


def turns(*texts: str) -> str:
    """The input that makes the scripted model answer with these turns, one after each round of results."""
    return "/turns " + " /then ".join(texts)
