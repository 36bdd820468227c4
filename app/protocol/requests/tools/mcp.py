"""The tool `mcp`: the tools of an MCP server that the operator allows; and a choice of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from app.protocol.requests.base import OR_ABSENT, Part, RequestModel, of_shape
from app.protocol.requests.validation import refused
from app.protocol.types import Json

MAX_NAMES = 512

ServerLabel = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
McpToolName = Annotated[str, Field(min_length=1, max_length=256)]
Names = Annotated[list[McpToolName], Field(max_length=MAX_NAMES, fail_fast=True)]


class ToolFilter(RequestModel):
    """Selects tools by name, or by whether they declare that they only read."""

    tool_names: Names | None = None
    read_only: bool | None = None


class ApprovalFilter(RequestModel):
    always: Annotated[ToolFilter | None, OR_ABSENT] = None
    never: Annotated[ToolFilter | None, OR_ABSENT] = None


def _shape_of(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else "<object>"


Allowed = Annotated[
    Annotated[Names, Tag("<list>")] | Annotated[ToolFilter, Tag("<object>")],
    Discriminator(_shape_of),
    of_shape("an array or an object", list, dict),
]
RequireApproval = Annotated[
    Annotated[Literal["always", "never"], Tag("<text>")] | Annotated[ApprovalFilter, Tag("<object>")],
    Discriminator(_shape_of),
    of_shape("a string or an object", str, dict),
]

_FORBIDDEN_HEADERS = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_FORBIDDEN_PREFIXES = ("mcp-", "proxy-")
_HEADER_NAME = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$"


def _check_header_names(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        if name.lower() in _FORBIDDEN_HEADERS or name.lower().startswith(_FORBIDDEN_PREFIXES):
            raise refused("'{path}' cannot be set.", "invalid_value", name)
    if len({name.lower() for name in headers}) < len(headers):
        raise refused("Invalid '{path}': a header is there twice.", "invalid_value")
    return headers


def _check_printable(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise refused("Invalid '{path}': expected printable ASCII characters.", "invalid_value")
    return value


Secret = Annotated[str, Field(min_length=1, max_length=8192), AfterValidator(_check_printable)]
Headers = Annotated[
    dict[Annotated[str, Field(pattern=_HEADER_NAME)], Secret],
    Field(max_length=32),
    AfterValidator(_check_header_names),
]


class McpTool(Part):
    """The tools of a server that the operator allows, by its label or its URL."""

    type: Literal["mcp"]
    server_label: ServerLabel
    server_url: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    server_description: str | None = None
    allowed_tools: Allowed | None = None
    require_approval: RequireApproval | None = None
    # Secrets: sealed apart from the tool, and never shown.
    headers: Annotated[Headers | None, Field(repr=False)] = None
    authorization: Annotated[Secret | None, Field(repr=False)] = None

    @property
    def known_as(self) -> str:
        return f"the server_label '{self.server_label}'"

    def stored(self) -> Json:
        rule, allowed = self.require_approval or "always", self.allowed_tools
        return {
            "type": self.type,
            "server_label": self.server_label,
            "server_url": self.server_url,
            "server_description": self.server_description,
            "allowed_tools": allowed.stored() if isinstance(allowed, ToolFilter) else allowed,
            "require_approval": rule if isinstance(rule, str) else rule.stored(),
        }

    def secrets(self) -> dict[str, str]:
        """Returns the headers that the server gets with this request only."""
        token = {} if self.authorization is None else {"Authorization": f"Bearer {self.authorization}"}
        return {**(self.headers or {}), **token}

    def allows(self, name: str) -> bool:
        """Whether `allowed_tools` has this name; a filter without names has every name."""
        names = self.allowed_tools.tool_names if isinstance(self.allowed_tools, ToolFilter) else self.allowed_tools
        return names is None or name in names


def _check_authorization(tool: McpTool) -> McpTool:
    if tool.authorization is not None and "authorization" in map(str.lower, tool.headers or ()):
        message = "'{path}' and an Authorization among the 'headers' cannot be used together."
        raise refused(message, "mutually_exclusive_parameters", "authorization")
    return tool


Mcp = Annotated[McpTool, AfterValidator(_check_authorization)]


class ChosenMcp(RequestModel):
    """The model must call a tool of this server, or the one that `name` names."""

    type: Literal["mcp"]
    server_label: ServerLabel
    name: Annotated[McpToolName | None, OR_ABSENT] = None

    key: ClassVar[str] = "server_label"

    @property
    def described(self) -> str:
        tool = "" if self.name is None else f" that allows '{self.name}'"
        return f"mcp tool '{self.server_label}'{tool}"

    def matches(self, tool: Any) -> bool:
        if not (isinstance(tool, McpTool) and tool.server_label == self.server_label):
            return False
        return self.name is None or tool.allows(self.name)
