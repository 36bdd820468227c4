"""The MCP servers that run hosted tools: `[[tool_servers]]` of models.toml, and LONGHAUL_TOOL_SERVERS.

This is the allow-list: no request makes a worker talk to an address that is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field

from config.hosts import in_url
from config.server_kind import BUILT_IN, ServerKind
from config.settings import ConfigError, Seconds

AfterCrash = Literal["again", "fail"]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

VARIABLE = "LONGHAUL_TOOL_SERVERS"
TIMEOUT_SECONDS = 60.0

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server, with a `url` (streamable HTTP) or a `command` (stdin and stdout)."""

    label: str
    """The server's name in a request (`server_label`)."""
    kind: ServerKind
    url: str | None = None
    command: tuple[str, ...] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every HTTP request. `${NAME}` stands for a variable of the worker's environment (`expand_headers`)."""
    request_headers: bool = False
    """Whether a request may send its own headers (and an `authorization`) to this server."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """Deadline of one call for the worker. The python tool has one of its own: `Limits.seconds`, 30 by default."""
    after_crash: AfterCrash | None = None
    """For a call whose worker died during it: `again` makes the call a second time, `fail` reports it as failed. None:
    again if the server is a built-in one, or says that the tool only reads, or that a second call changes nothing."""
    allowed_tools: frozenset[str] | None = None
    """The names of its tools that requests may use; None: all."""
    require_approval: bool = False
    """Whether every call of an `mcp` tool needs approval, whatever the request would have."""

    def allows(self, tool: str) -> bool:
        return self.allowed_tools is None or tool in self.allowed_tools


class ToolServerEntry(BaseModel):
    """One `[[tool_servers]]` of a models file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: Label
    kind: ServerKind = "mcp"
    url: str | None = None
    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    headers: dict[str, str] = {}
    request_headers: bool = False
    timeout_seconds: Seconds = TIMEOUT_SECONDS
    after_crash: AfterCrash | None = None
    allowed_tools: list[Annotated[str, Field(min_length=1)]] | None = None
    require_approval: Literal["always"] | None = None

    def server(self) -> McpServer:
        """The entry, checked. Raises ConfigError."""
        subject = f"MCP server {self.label!r}"
        if (self.url is None) == (self.command is None):
            raise ConfigError(f"{subject} needs a url or a command, and not both")
        if self.url is not None:
            _check_url(self.url, subject)
        elif self.headers or self.request_headers:
            raise ConfigError(f"{subject} is a command: it takes no headers")
        _check_headers(self.headers, subject)
        frozen = {
            "command": None if self.command is None else tuple(self.command),
            "headers": MappingProxyType(dict(self.headers)),
            "allowed_tools": None if self.allowed_tools is None else frozenset(self.allowed_tools),
            "require_approval": self.require_approval == "always",
        }
        return McpServer(**{**self.model_dump(), **frozen})


def servers_of_file(entries: Iterable[ToolServerEntry]) -> tuple[McpServer, ...]:
    """The MCP servers of a models file. Raises ConfigError."""
    servers = tuple(entry.server() for entry in entries)
    _check_unique(servers)
    return servers


def servers_of_variable(value: str) -> tuple[McpServer, ...]:
    """The MCP servers of LONGHAUL_TOOL_SERVERS: `label=url,...`. The labels `python` and `browser` set the kind.

    Raises ConfigError, which names the variable and never repeats a URL: a URL may hold a secret.
    """
    servers = []
    try:
        for part in filter(None, map(str.strip, value.split(","))):
            label, _, url = part.partition("=")
            if not _LABEL.fullmatch(label):
                raise ConfigError("expected label=url, several with commas between them")
            _check_url(url, f"MCP server {label!r}")
            servers.append(McpServer(label, BUILT_IN.get(label, "mcp"), url))
        _check_unique(servers)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from None
    return tuple(servers)


def merge_servers(file: Sequence[McpServer], environment: Sequence[McpServer]) -> tuple[McpServer, ...]:
    """The servers of both; one of the environment replaces those of the file with its label or its built-in kind."""
    labels = {server.label for server in environment}
    kinds = {server.kind for server in environment} - {"mcp"}
    return (*(server for server in file if server.label not in labels and server.kind not in kinds), *environment)


def server_of_kind(servers: Iterable[McpServer], kind: ServerKind) -> McpServer | None:
    """The server that runs a built-in tool; None if there is none."""
    return next((server for server in servers if server.kind == kind), None)


def server_for(servers: Iterable[McpServer], label: str, url: str | None) -> McpServer | None:
    """The allowed server that an `mcp` tool names by URL, or else by label; None if it is not allowed.

    A worker connects to the URL of the returned server, never to a URL that a request holds.
    """
    if url is None:
        return next((server for server in servers if server.label == label), None)
    wanted = normalize_url(url)
    return next((server for server in servers if server.url is not None and normalize_url(server.url) == wanted), None)


def normalize_url(url: str) -> str | None:
    """The URL in one spelling, to compare it by; None if it is not an http(s) URL, or holds a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not parts.hostname or parts.username is not None or parts.password is not None:
        return None
    host = in_url(parts.hostname)
    netloc = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    return urlunsplit((scheme, netloc, parts.path.rstrip("/"), parts.query, ""))


def expand_headers(headers: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`headers` with each `${NAME}` replaced. Raises ConfigError, which names a variable that is not set."""

    def value_of(reference: re.Match[str]) -> str:
        value = environ.get(reference[1])
        if value is None:
            raise ConfigError(f"{reference[1]} is not set, and a header of an MCP server needs it")
        return value

    return {name: _REFERENCE.sub(value_of, value) for name, value in headers.items()}


def is_header_name(name: str) -> bool:
    """Whether HTTP allows this name of a header (a token of RFC 9110)."""
    return _HEADER.fullmatch(name) is not None


def _check_url(url: str, subject: str) -> None:
    if normalize_url(url) is None:
        raise ConfigError(f"{subject} needs a url that starts with http:// or https:// and holds no password")


def _check_headers(headers: Mapping[str, Any], subject: str) -> None:
    for name, value in headers.items():
        if not is_header_name(name):
            raise ConfigError(f"{subject} has the header {name!r}, which is no header's name")
        if "${" in _REFERENCE.sub("", value) or not value.isprintable():
            raise ConfigError(f"{subject}: the header {name!r} is not text with ${{NAME}} in it")


def _check_unique(servers: Iterable[McpServer]) -> None:
    """A label names one server, and one server runs each built-in tool."""
    labels: set[str] = set()
    kinds: set[str] = set()
    for server in servers:
        if server.label in labels:
            raise ConfigError(f"two MCP servers have the label {server.label!r}")
        if server.kind in kinds:
            raise ConfigError(f"two MCP servers are of the kind {server.kind!r}")
        labels.add(server.label)
        kinds |= {server.kind} - {"mcp"}
