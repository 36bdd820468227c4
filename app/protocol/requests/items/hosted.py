"""Items of `input` about hosted tools, as clients received them in an `output` and send them back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from app.protocol.requests.base import ByType, ItemId, Part, of_shape
from app.protocol.requests.fields import MAX_PARTS
from app.protocol.requests.items.stored_item import PlainItem, StoredItem
from app.protocol.requests.tools.mcp import McpToolName, ServerLabel
from app.protocol.types import Json

MAX_TOOLS = 1024
OPEN_WEBUI_CODE = "open_webui:code_interpreter"


class Logs(Part):
    type: Literal["logs"]
    logs: str


class Image(Part):
    type: Literal["image"]
    url: str


CodeOutput = Annotated[Logs | Image, ByType()]


class CodeInterpreterCall(StoredItem):
    """Code that ran for a model."""

    prefix = "ci"

    type: Literal["code_interpreter_call"]
    code: str | None
    container_id: Annotated[str, Field(max_length=256)]
    outputs: Annotated[list[CodeOutput], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None


class OpenWebUiCode(StoredItem):
    """Code that Open WebUI ran for a model. It is stored, and comes back, as a `code_interpreter_call`."""

    prefix = "ci"

    type: Literal["open_webui:code_interpreter"]
    code: str
    output: Any = None

    def _fields(self) -> Json:
        logs = self.output if isinstance(self.output, str) else orjson.dumps(self.output).decode()
        outputs = [] if self.output is None else [{"type": "logs", "logs": logs}]
        return {"type": "code_interpreter_call", "code": self.code, "container_id": "open_webui", "outputs": outputs}


class Source(Part):
    type: Literal["url"]
    url: str


class SearchAction(Part):
    type: Literal["search"]
    query: str | None = None
    queries: Annotated[list[str], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    sources: Annotated[list[Source], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None


class OpenAction(Part):
    type: Literal["open_page"]
    url: str | None = None


class FindAction(Part):
    type: Literal["find_in_page"]
    pattern: str
    url: str


Action = Annotated[SearchAction | OpenAction | FindAction, ByType()]


class WebSearchCall(StoredItem):
    """A search that a model made, or a page that it opened."""

    prefix = "ws"

    type: Literal["web_search_call"]
    action: Action

    def _fields(self) -> Json:
        return {"type": self.type, "action": self.action.model_dump(exclude_none=True)}


class McpCall(StoredItem):
    """A call that a model made of an MCP server's tool."""

    prefix = "mcp"

    type: Literal["mcp_call"]
    server_label: ServerLabel
    name: McpToolName
    arguments: str
    output: str | None = None
    error: Annotated[str | Json | None, of_shape("a string or an object", str, dict, type(None))] = None
    approval_request_id: ItemId | None = None


class ListedTool(Part):
    """A tool as its MCP server describes it."""

    name: McpToolName
    input_schema: Json | None
    description: str | None = None
    annotations: Json | None = None


class McpListTools(PlainItem):
    """The tools that an MCP server listed."""

    prefix = "mcpl"

    type: Literal["mcp_list_tools"]
    server_label: ServerLabel
    tools: Annotated[list[ListedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
    error: str | None = None


class ApprovalRequest(PlainItem):
    """A call of an MCP server's tool that waits for the client's approval."""

    prefix = "mcpr"

    type: Literal["mcp_approval_request"]
    server_label: ServerLabel
    name: McpToolName
    arguments: str


class ApprovalResponse(PlainItem):
    """The client's answer to an approval request."""

    prefix = "mcpa"

    type: Literal["mcp_approval_response"]
    approval_request_id: ItemId
    approve: bool
    reason: str | None = None


AnyHostedItem = (
    CodeInterpreterCall | OpenWebUiCode | WebSearchCall | McpCall | McpListTools | ApprovalRequest | ApprovalResponse
)
