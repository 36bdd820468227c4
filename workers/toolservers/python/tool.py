"""The python tool as an MCP server: one tool, with results as text for the model and as fields for programs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
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
)

from config.server_kind import PROJECT_META, RENEWED_META
from workers.toolservers.python.answer import CallOutcome, StopReason
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.limits import Limits
from workers.toolservers.python.output import NOTE_BYTES, truncate_middle
from workers.toolservers.python.session import SandboxPool, Session
from workers.toolservers.serving import state_of

log = logging.getLogger("longhaul.tools.python")

NAME = "python"
INSTRUCTIONS = (
    "Runs Python code in a notebook-like session: names stay from one call to the next, and the value of the last "
    "expression is shown. There is no network. Files in the working folder live as long as the session."
)
MAX_CODE_CHARS = 1024 * 1024
FRESH = "[The interpreter was started anew: names of earlier calls are lost.]"

INPUT = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python source, as one cell of a notebook."}},
    "required": ["code"],
    "additionalProperties": False,
}
_TEXT_OR_NULL = {"type": ["string", "null"]}
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "result": {**_TEXT_OR_NULL, "description": "repr() of the last expression's value."},
        "error": {**_TEXT_OR_NULL, "description": "The traceback where the code raised."},
        "killed": {"enum": [None, *(ending.value for ending in StopReason)]},
        "state_lost": {"type": "boolean", "description": "The interpreter is gone; the next call gets a fresh one."},
    },
}
OUTPUT["required"] = list(OUTPUT["properties"])
TOOL = Tool(
    name=NAME,
    description="Runs Python code and returns what it printed, the last expression's value, or its traceback.",
    input_schema=INPUT,
    output_schema=OUTPUT,
    _meta={"include_in_prompt": False},  # vLLM reads this: gpt-oss knows the tool without a description
)


def make_server(pool: SandboxPool) -> Server[Any]:
    """The MCP server. Each of its sessions has an interpreter of `pool`, which is closed with the server."""

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            await pool.close()

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[TOOL])

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name != NAME:
            raise MCPError(INVALID_PARAMS, f"unknown tool; there is only {NAME!r}")
        meta = params.meta or {}
        project, renewed = meta.get(PROJECT_META), meta.get(RENEWED_META) is True
        make = partial(pool.session, project=project if isinstance(project, str) else None, renewed=renewed)
        return await _call(pool, context, params.arguments or {}, make)

    return Server(NAME, instructions=INSTRUCTIONS, lifespan=lifespan, on_list_tools=list_tools, on_call_tool=call_tool)


async def _call(
    pool: SandboxPool,
    context: ServerRequestContext[Any],
    arguments: dict[str, Any],
    make: Callable[[AsyncExitStack], Session],
) -> CallToolResult:
    problem = _problem_with(arguments)
    if problem is not None:
        return _failure(problem)
    try:
        outcome, fresh = await state_of(context, make).call(arguments["code"])
    except SandboxError as error:
        log.warning("a call got no interpreter: %s", error)
        return _failure(f"The python tool cannot run this now: {error}")
    return result_of(outcome, fresh, pool.spec.limits)


def _problem_with(arguments: dict[str, Any]) -> str | None:
    """The fault of the arguments, so that the model can correct them; None if there is none."""
    unknown = sorted(set(arguments) - {"code"})
    if unknown:
        return f"{unknown[0][:40]}: unknown argument; there is only 'code'"
    code = arguments.get("code")
    if not isinstance(code, str):
        return "code: must be a string" if "code" in arguments else "code: is missing"
    return f"code: must be at most {MAX_CODE_CHARS} characters" if len(code) > MAX_CODE_CHARS else None


def _failure(text: str) -> CallToolResult:
    fields = _fields(CallOutcome(stderr=text))
    return CallToolResult(content=[TextContent(text=text)], structured_content=fields, is_error=True)


def result_of(outcome: CallOutcome, fresh: bool, limits: Limits) -> CallToolResult:
    """The MCP result. An exception of the code is an ordinary result; a call that the sandbox stopped is an error."""
    parts = [FRESH if fresh else "", outcome.stdout, outcome.stderr, outcome.result or "", outcome.error or ""]
    text = truncate_middle(_join(parts), limits.output + 4 * NOTE_BYTES)
    text = _join([text, explain(outcome, limits)])
    images = [ImageContent(data=image, mime_type="image/png") for image in outcome.images]
    content = [TextContent(text=text), *images]
    return CallToolResult(content=content, structured_content=_fields(outcome), is_error=outcome.killed is not None)


def _fields(outcome: CallOutcome) -> dict[str, Any]:
    fields = {name: getattr(outcome, name) for name in OUTPUT["properties"]}
    return {**fields, "killed": outcome.killed.value if outcome.killed else None}


def _join(parts: list[str]) -> str:
    """The parts, each on a new line."""
    text = ""
    for part in filter(None, parts):
        text += part if not text or text.endswith("\n") else f"\n{part}"
    return text


def explain(outcome: CallOutcome, limits: Limits) -> str:
    """Why the sandbox stopped a call, and what is left of its state; empty if the call ended by itself."""
    if outcome.killed is None:
        return ""
    why = {
        StopReason.TIMEOUT: f"it took longer than {limits.seconds:g} s",
        StopReason.MEMORY: f"it used more than {limits.memory.human_readable()} of memory",
        StopReason.CPU: f"a process used more than {limits.cpu_seconds} s of CPU time",
        StopReason.OUTPUT: f"it printed more than {limits.flood.human_readable()}",
        StopReason.CANCELLED: "the call was cancelled",
        StopReason.DIED: "the interpreter ended",
    }[outcome.killed]
    left = "Its names are lost; the next call starts anew" if outcome.state_lost else "Earlier names are kept"
    return f"[Stopped: {why}. {left}.]"
