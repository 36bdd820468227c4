"""The library that the tiny gpt-oss knows, as an MCP server on stdin and stdout: `python library_server.py FOLDER`.

Each call is a line in FOLDER/calls.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

BOOKS = {"whales": "Moby Dick", "bees": "The Life of the Bee"}
TOOLS = {"find_book": ("Finds a book of the library.", "topic"), "lend_book": ("Lends a book of the library.", "title")}


def _schema(parameter: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": [parameter], "additionalProperties": False}


async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
    tools = [Tool(name=name, description=text, input_schema=_schema(key)) for name, (text, key) in TOOLS.items()]
    return ListToolsResult(tools=tools)


def make_server(folder: Path) -> Server[Any]:
    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        [value] = (params.arguments or {}).values()
        with (folder / "calls").open("a") as calls:
            calls.write(f"{params.name} {value}\n")
        lent = f"{value} is yours until Friday."
        text = lent if params.name == "lend_book" else BOOKS.get(value, "There is none.")
        return CallToolResult(content=[TextContent(text=text)])

    return Server("library", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(folder: Path) -> None:
    server = make_server(folder)
    async with server.lifespan(server) as state, stdio_server() as (reading, writing):
        await serve_loop(server, reading, writing, lifespan_state=state)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
