"""The servers of tools that models may call on the server: `[[tool_servers]]` of models.toml, LONGHAUL_TOOL_SERVERS.

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

from config.settings import ConfigError

Kind = Literal["python", "browser", "mcp"]
"""`python` runs code_interpreter, `browser` web_search; all of them may be used as `mcp`."""
AfterCrash = Literal["again", "fail"]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

VARIABLE = "LONGHAUL_TOOL_SERVERS"
TIMEOUT_SECONDS = 60.0

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_IMPLIED: Mapping[str, Kind] = MappingProxyType({"python": "python", "browser": "browser"})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class McpServer:
    """One MCP server. It has a `url` (streamable HTTP) or a `command` (stdio)."""

    label: str
    """What a request calls it (`server_label`)."""
    kind: Kind
    url: str | None = None
    command: tuple[str, ...] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every HTTP request; `${NAME}` stands for a variable of the worker's environment (`expanded`)."""
    request_headers: bool = False
    """Whether requests may bring headers (and an `authorization`) of their own."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """Of one call."""
    after_crash: AfterCrash = "again"
    """What becomes of a call that was under way when its worker died: run again, or given back as failed."""


class ToolServerEntry(BaseModel):
    """One `[[tool_servers]]` of a models file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: Label
    kind: Kind = "mcp"
    url: str | None = None
    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    headers: dict[str, str] = {}
    request_headers: bool = False
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TIMEOUT_SECONDS
    after_crash: AfterCrash = "again"

    def server(self) -> McpServer:
        """Raises ConfigError."""
        what = f"tool server {self.label!r}"
        if (self.url is None) == (self.command is None):
            raise ConfigError(f"{what} needs a url or a command, and not both")
        if self.url is not None:
            _check_url(self.url, what)
        elif self.headers or self.request_headers:
            raise ConfigError(f"{what} is a command: it takes no headers")
        _check_headers(self.headers, what)
        return McpServer(
            label=self.label,
            kind=self.kind,
            url=self.url,
            command=None if self.command is None else tuple(self.command),
            headers=MappingProxyType(dict(self.headers)),
            request_headers=self.request_headers,
            timeout_seconds=self.timeout_seconds,
            after_crash=self.after_crash,
        )


def servers_of(entries: Iterable[ToolServerEntry]) -> tuple[McpServer, ...]:
    """The servers of a models file. Raises ConfigError."""
    servers = tuple(entry.server() for entry in entries)
    _check_unique(servers)
    return servers


def servers_from(value: str) -> tuple[McpServer, ...]:
    """Those of LONGHAUL_TOOL_SERVERS, `label=url,...`: the labels `python` and `browser` tell the kind.

    Raises ConfigError that names the variable, and never repeats a URL.
    """
    servers = []
    for part in filter(None, map(str.strip, value.split(","))):
        label, _, url = part.partition("=")
        if not _LABEL.fullmatch(label):
            raise ConfigError(f"{VARIABLE}: expected label=url, several with commas between them")
        try:
            _check_url(url, f"tool server {label!r}")
        except ConfigError as error:
            raise ConfigError(f"{VARIABLE}: {error}") from None
        servers.append(McpServer(label, _IMPLIED.get(label, "mcp"), url))
    try:
        _check_unique(servers)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from None
    return tuple(servers)


def merged(file: Sequence[McpServer], environment: Sequence[McpServer]) -> tuple[McpServer, ...]:
    """All of them: one of the environment takes the place of the file's with its label, or of its built-in kind."""
    labels = {server.label for server in environment}
    kinds = {server.kind for server in environment} - {"mcp"}
    return (*(server for server in file if server.label not in labels and server.kind not in kinds), *environment)


def server_of_kind(servers: Iterable[McpServer], kind: Kind) -> McpServer | None:
    """The one server that runs a built-in tool."""
    return next((server for server in servers if server.kind == kind), None)


def server_for(servers: Iterable[McpServer], label: str, url: str | None) -> McpServer | None:
    """The server that an `mcp` tool means: by its URL where it has one, else by its label. None: it is not allowed.

    A worker talks to what this returns, and to nothing that a request wrote.
    """
    if url is None:
        return next((server for server in servers if server.label == label), None)
    wanted = normalized(url)
    return next((server for server in servers if server.url is not None and normalized(server.url) == wanted), None)


def normalized(url: str) -> str | None:
    """A URL by which two spellings of one address are equal; None where it is no http(s) URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not parts.hostname or parts.username is not None or parts.password is not None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    return urlunsplit((scheme, place, parts.path.rstrip("/"), parts.query, ""))


def expanded(headers: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`headers` with each `${NAME}` replaced. Raises ConfigError that names the variable that is not set."""

    def value_of(found: re.Match[str]) -> str:
        value = environ.get(found[1])
        if value is None:
            raise ConfigError(f"{found[1]} is not set, and a header of a tool server needs it")
        return value

    return {name: _REFERENCE.sub(value_of, value) for name, value in headers.items()}


def is_header_name(name: str) -> bool:
    """Whether HTTP takes it (RFC 9110, a token)."""
    return _HEADER.fullmatch(name) is not None


def _check_url(url: str, what: str) -> None:
    if normalized(url) is None:
        raise ConfigError(f"{what} needs a url that starts with http:// or https:// and holds no password")


def _check_headers(headers: Mapping[str, Any], what: str) -> None:
    for name, value in headers.items():
        if not is_header_name(name):
            raise ConfigError(f"{what} has the header {name!r}, which is no header's name")
        if "${" in _REFERENCE.sub("", value) or not value.isprintable():
            raise ConfigError(f"{what}: the header {name!r} is not text with ${{NAME}} in it")


def _check_unique(servers: Iterable[McpServer]) -> None:
    """One label means one server, and so does a built-in tool."""
    labels: set[str] = set()
    kinds: set[str] = set()
    for server in servers:
        if server.label in labels:
            raise ConfigError(f"two tool servers have the label {server.label!r}")
        if server.kind in kinds:
            raise ConfigError(f"two tool servers are of the kind {server.kind!r}")
        labels.add(server.label)
        kinds |= {server.kind} - {"mcp"}
