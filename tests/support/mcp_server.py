"""An MCP server for tests, as a process of its own: `python -m tests.support.mcp_server LOG [PORT [modern]]`.

Without a port it serves stdin and stdout. It speaks the protocol versions with sessions, or the one without (modern).

Every call writes a line to the file LOG when it begins, and another one when it ends or is cancelled:
`begun NAME TEXT`, `ended NAME TEXT`, `cut NAME TEXT`; sessions are `opened` and `closed`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from tests.support.waiting import until
from workers.toolservers.serving import require_sessions

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
TOOLS = {
    "echo": "Says it again.",
    "slow": "Says it again once the file that is named like it is there.",
    "failing": "Fails.",
    "refusing": "Refuses the call.",
    "huge": "Says very much.",
    "endless": "Says one line without an end, where it serves stdin and stdout.",
    "picture": "Shows a picture.",
    "header": "Says what the header of that name was.",
    "python": "For tests of code_interpreter.",
    "search": "For tests of web_search.",
    "open": "For tests of web_search.",
    "find": "For tests of web_search.",
}
WIRE = 99
"""The file descriptor of the original stdout: the SDK redirects prints."""
CITED = "https://example.test/page"
"""The lines that `open` shows."""


class Log:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, *words: str) -> None:
        with self._path.open("a") as file:
            file.write(" ".join(words) + "\n")


def make_server(log: Log, folder: Path) -> Server[Any]:
    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        log.write("listed")
        reading = ToolAnnotations(read_only_hint=True)
        return ListToolsResult(
            tools=[
                Tool(name=name, description=text, input_schema=TEXT, annotations=reading if name == "echo" else None)
                for name, text in TOOLS.items()
            ]
        )

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        text = str(arguments.get("text", arguments.get("code", arguments.get("query", ""))))
        log.write("begun", params.name, text)
        try:
            result = await _called(folder, context, params.name, text)
        except asyncio.CancelledError:
            log.write("cut", params.name, text)
            raise
        log.write("ended", params.name, text)
        return result

    return Server("tests", on_list_tools=list_tools, on_call_tool=call_tool)


async def _called(folder: Path, context: ServerRequestContext[Any], name: str, text: str) -> CallToolResult:
    if name == "slow":
        await until((folder / text).exists, timeout=600.0)
    if name == "refusing":
        raise MCPError(INVALID_PARAMS, f"no {text} here")
    if name == "failing":
        return CallToolResult(content=[TextContent(text=f"cannot do {text}")], is_error=True)
    if name == "huge":
        return CallToolResult(content=[TextContent(text="é" * int(text))])
    while name == "endless":
        os.write(WIRE, b"x" * 65536)
    if name == "picture":
        picture = ImageContent(data="aGVsbG8=", mime_type="image/png")
        return CallToolResult(content=[TextContent(text="look:"), picture])
    if name == "header":
        headers = context.request.headers if context.request is not None else {}
        return CallToolResult(content=[TextContent(text=headers.get(text, "none"))])
    if name in ("search", "open", "find"):
        return _browsed(name, text)
    return CallToolResult(content=[TextContent(text=f"{name} {text}")])


def _browsed(name: str, text: str) -> CallToolResult:
    sources = [{"type": "url", "url": CITED}]
    action = {
        "search": {"type": "search", "query": text, "sources": sources},
        "open": {"type": "open_page", "url": CITED},
        "find": {"type": "find_in_page", "url": CITED, "pattern": "x"},
    }[name]
    facts = {"cursor": 0, "url": CITED, "title": "A page", "lines": [0, 9], "action": action}
    return CallToolResult(content=[TextContent(text=f"[0] A page\nL0: {text}")], structured_content=facts)


async def serve_http(server: Server[Any], log: Log, port: int) -> None:
    app = server.streamable_http_app(streamable_http_path="/mcp", json_response=False, host="127.0.0.1")

    async def logged(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "DELETE":
                log.write("closed")
            if message["type"] == "http.response.start" and _opens(scope, message):
                log.write("opened")
            await send(message)

        await app(scope, receive, sending if scope["type"] == "http" else send)

    config = uvicorn.Config(logged, host="127.0.0.1", port=port, log_config=None, timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve()


def _opens(scope: Any, message: Any) -> bool:
    """Whether the answer names a session that the request did not have."""
    named = any(name == b"mcp-session-id" for name, _ in message["headers"])
    return named and not any(name == b"mcp-session-id" for name, _ in scope["headers"])


async def serve_stdio(server: Server[Any], log: Log) -> None:
    os.dup2(1, WIRE)
    log.write("opened", str(os.getpid()))
    try:
        async with server.lifespan(server) as state, stdio_server() as (reading, writing):
            await serve_loop(server, reading, writing, lifespan_state=state)
    finally:
        log.write("closed", str(os.getpid()))


def main() -> None:
    arguments = sys.argv[1:]
    path = Path(arguments[0])
    log = Log(path)
    server = make_server(log, path.parent)
    if "modern" not in arguments:
        require_sessions(server)
    if arguments[1:]:
        asyncio.run(serve_http(server, log, int(arguments[1])))
    else:
        asyncio.run(serve_stdio(server, log))


if __name__ == "__main__":
    main()
