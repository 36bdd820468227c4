"""`tools` that the server runs itself: code_interpreter, web_search, and tools of MCP servers; and choices of them.

Which of them there are is the operator's to say (config/tools.py), and the API's to check (responses/tool_servers.py).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from app.protocol.requests.base import Json, RequestModel
from app.protocol.requests.fields import SupportedValues
from app.protocol.requests.validation import refused, wrong_kind

CODE_INTERPRETER = "code_interpreter"
WEB_SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
"""One tool under four names."""
MCP = "mcp"

SERVER_TOOLS = (CODE_INTERPRETER, *WEB_SEARCHES, MCP)

MOST_NAMES = 512

ServerLabel = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
McpToolName = Annotated[str, Field(min_length=1, max_length=256)]
Names = Annotated[list[McpToolName], Field(max_length=MOST_NAMES, fail_fast=True)]
Direct = Annotated[list[str] | None, SupportedValues((["direct"],))]


class AutoContainer(RequestModel):
    """A fresh sandbox for each response."""

    type: Literal["auto"]
    file_ids: Annotated[list[str] | None, SupportedValues(([],))] = None
    memory_limit: Annotated[str | None, SupportedValues()] = None
    network_policy: Annotated[Json | None, SupportedValues()] = None


def _check_container(value: Any) -> Any:
    if isinstance(value, str):
        raise refused("'{path}' by id is not supported yet (only {'type': 'auto'} is).", "unsupported_parameter")
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    return value


class CodeInterpreter(RequestModel):
    """Runs Python in a sandbox that lives as long as the response."""

    type: Literal["code_interpreter"]
    container: Annotated[AutoContainer, BeforeValidator(_check_container)]
    allowed_callers: Direct = None

    @property
    def known_as(self) -> str:
        return f"the type '{self.type}'"

    def stored(self) -> Json:
        return {"type": self.type, "container": {"type": self.container.type}}


class Filters(RequestModel):
    allowed_domains: Annotated[list[str] | None, SupportedValues(([],))] = None


class UserLocation(RequestModel):
    """A search is not told where its user is."""

    type: Literal["approximate"]
    city: Annotated[str | None, SupportedValues()] = None
    country: Annotated[str | None, SupportedValues()] = None
    region: Annotated[str | None, SupportedValues()] = None
    timezone: Annotated[str | None, SupportedValues()] = None


class _WebSearch(RequestModel):
    search_context_size: Annotated[str | None, SupportedValues(("medium",))] = None
    user_location: UserLocation | None = None
    search_content_types: Annotated[list[str] | None, SupportedValues((["text"],))] = None

    @property
    def known_as(self) -> str:
        return f"the type '{WEB_SEARCHES[0]}'"

    def _searches(self, kind: str) -> Json:
        return {
            "type": kind,
            "search_context_size": "medium",
            "user_location": None if self.user_location is None else {"type": self.user_location.type},
        }


class WebSearch(_WebSearch):
    """Searches the web, opens pages and finds text in them."""

    type: Literal["web_search", "web_search_2025_08_26"]
    filters: Filters | None = None
    external_web_access: Annotated[bool | None, SupportedValues((True,))] = None

    def stored(self) -> Json:
        return {**self._searches(self.type), "filters": None}


class WebSearchPreview(_WebSearch):
    """The same under its older names."""

    type: Literal["web_search_preview", "web_search_preview_2025_03_11"]

    def stored(self) -> Json:
        return self._searches(self.type)


class ToolFilter(RequestModel):
    """Tools by their names, or by whether they say that they only read."""

    tool_names: Names | None = None
    read_only: bool | None = None

    def stored(self) -> Json:
        return {"tool_names": self.tool_names, "read_only": self.read_only}


class ApprovalFilter(RequestModel):
    always: ToolFilter | None = None
    never: ToolFilter | None = None

    def stored(self) -> Json:
        sent = {"always": self.always, "never": self.never}
        return {name: rule.stored() for name, rule in sent.items() if rule is not None}


def _kind_of_value(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else "<object>"


def _check_among(expected: str, *kinds: type) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise wrong_kind(expected, value)
        return value

    return BeforeValidator(check)


Allowed = Annotated[
    Annotated[Names, Tag("<list>")] | Annotated[ToolFilter, Tag("<object>")],
    Discriminator(_kind_of_value),
    _check_among("an array or an object", list, dict),
]
RequireApproval = Annotated[
    Annotated[Literal["always", "never"], Tag("<text>")] | Annotated[ApprovalFilter, Tag("<object>")],
    Discriminator(_kind_of_value),
    _check_among("a string or an object", str, dict),
]

_NOT_TO_BE_SET = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_NOT_TO_BEGIN_WITH = ("mcp-", "proxy-")
_TOKEN = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$"


def _check_header_names(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        if name.lower() in _NOT_TO_BE_SET or name.lower().startswith(_NOT_TO_BEGIN_WITH):
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
    dict[Annotated[str, Field(pattern=_TOKEN)], Secret],
    Field(max_length=32),
    AfterValidator(_check_header_names),
]


class McpTool(RequestModel):
    """The tools of a server that the operator allows, by its label or its URL."""

    type: Literal["mcp"]
    server_label: ServerLabel
    server_url: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    server_description: str | None = None
    allowed_tools: Allowed | None = None
    require_approval: RequireApproval | None = None
    # Secrets: sealed apart from the tool, and never shown again.
    headers: Annotated[Headers | None, Field(repr=False)] = None
    authorization: Annotated[Secret | None, Field(repr=False)] = None
    connector_id: Annotated[str | None, SupportedValues()] = None
    tunnel_id: Annotated[str | None, SupportedValues()] = None
    allowed_callers: Direct = None
    defer_loading: Annotated[bool | None, SupportedValues((False,))] = None

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
        """The headers that the server is to get with this request alone."""
        token = {} if self.authorization is None else {"Authorization": f"Bearer {self.authorization}"}
        return {**(self.headers or {}), **token}


def _check_authorization(tool: McpTool) -> McpTool:
    if tool.authorization is not None and "authorization" in map(str.lower, tool.headers or ()):
        message = "'{path}' and an Authorization among the 'headers' cannot be used together."
        raise refused(message, "mutually_exclusive_parameters", "authorization")
    return tool


Mcp = Annotated[McpTool, AfterValidator(_check_authorization)]


class ChosenCodeInterpreter(RequestModel):
    """Code must be run."""

    type: Literal["code_interpreter"]

    field: ClassVar[str] = "type"
    what: ClassVar[str] = "code_interpreter tool"

    def stored(self) -> Json:
        return {"type": self.type}

    def means(self, tool: Any) -> bool:
        return isinstance(tool, CodeInterpreter)


class ChosenWebSearch(RequestModel):
    """The web must be searched."""

    type: Literal["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]

    field: ClassVar[str] = "type"
    what: ClassVar[str] = "web_search tool"

    def stored(self) -> Json:
        return {"type": self.type}

    def means(self, tool: Any) -> bool:
        return isinstance(tool, _WebSearch)


class ChosenMcp(RequestModel):
    """A tool of this server must be called, or this one of its tools."""

    type: Literal["mcp"]
    server_label: ServerLabel
    name: McpToolName | None = None

    field: ClassVar[str] = "server_label"

    @property
    def what(self) -> str:
        tool = "" if self.name is None else f" that allows '{self.name}'"
        return f"mcp tool '{self.server_label}'{tool}"

    def stored(self) -> Json:
        named = {} if self.name is None else {"name": self.name}
        return {"type": self.type, "server_label": self.server_label, **named}

    def means(self, tool: Any) -> bool:
        if not (isinstance(tool, McpTool) and tool.server_label == self.server_label):
            return False
        allowed = tool.allowed_tools
        names = allowed.tool_names if isinstance(allowed, ToolFilter) else allowed
        return self.name is None or names is None or self.name in names
