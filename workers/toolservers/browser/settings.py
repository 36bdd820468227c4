"""The browser server's options: on the command line, or LONGHAUL_BROWSER_... in the environment."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from workers.toolservers.settings import ServerSettings

Several = Annotated[tuple[str, ...], NoDecode]


def _default_level() -> str:
    return os.environ.get("LONGHAUL_LOG_LEVEL") or "INFO"


class BrowserSettings(ServerSettings):
    """Serves gpt-oss's browser tools (search, open, find) over MCP. Each option is also a variable: --max-pages is
    LONGHAUL_BROWSER_MAX_PAGES. Secrets are variables only: EXA_API_KEY, and LONGHAUL_TOOLS_TOKEN, the bearer token
    that clients must send."""

    model_config = SettingsConfigDict(env_prefix="LONGHAUL_BROWSER_", cli_prog_name="longhaul tools browser")

    backend: Literal["searxng", "exa", "folder"]
    """where results come from"""
    url: str | None = None
    """the SearXNG server, http://...; for exa another address of its API"""
    folder: Path | None = None
    """the folder of HTML and text files"""

    stdio: bool = False
    """serve one session on stdin and stdout, instead of HTTP"""
    host: str = "127.0.0.1"
    """address to listen on; one that other machines can reach requires LONGHAUL_TOOLS_TOKEN"""
    port: Annotated[int, Field(ge=0, le=65535)] = 8802
    """port to listen on; 0 takes any free one, which the log names"""

    allow_private: bool = False
    """also open pages on private addresses and on any port: every server that this machine can reach"""
    allow_network: Several = ()
    """also open pages in this network (such as 10.1.0.0/16), on any port; may be given several times"""
    ports: Several = ("80", "443")
    """ports of public addresses to open pages on"""

    seconds: Annotated[float, Field(gt=0, le=600)] = 20.0
    """deadline of a search, and of a page with its redirects"""
    max_redirects: Annotated[int, Field(ge=0, le=20)] = 5
    """redirects followed"""
    max_page_bytes: Annotated[int, Field(ge=1024, le=2**28)] = 4 * 1024 * 1024
    """bytes read of a page, after decompression; the rest is left out"""
    max_page_characters: Annotated[int, Field(ge=1024, le=2**26)] = 512 * 1024
    """characters kept of a page's text; the rest is left out"""
    max_pages: Annotated[int, Field(ge=1, le=10_000)] = 32
    """pages kept in a session; the oldest are dropped first"""
    max_results: Annotated[int, Field(ge=1, le=100)] = 20
    """most results of a search, however many the model asks for"""
    view_bytes: Annotated[int, Field(ge=256, le=2**20)] = 4096
    """bytes shown at once if the model names no number of lines (4096 are about 1024 tokens)"""
    max_sessions: Annotated[int, Field(ge=1, le=100_000)] = 256
    """open sessions; one more gets a 503"""
    idle_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """a session that is not used for this long ends"""
    max_calls: Annotated[int, Field(ge=1, le=1000)] = 32
    """calls of all sessions that run at once; more wait"""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default_factory=_default_level, validate_default=True
    )
    """least severe level to log (default: LONGHAUL_LOG_LEVEL, or INFO); only DEBUG logs queries and URLs"""

    @field_validator("allow_network", "ports", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("allow_network")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network)
        return value

    @field_validator("ports")
    @classmethod
    def _ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(port.isdecimal() and 0 < int(port) < 65536 for port in value):
            raise ValueError("must be numbers from 1 to 65535")
        return value

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value

    @model_validator(mode="after")
    def _complete(self) -> BrowserSettings:
        if self.backend == "searxng" and self.url is None:
            raise ValueError("--url: is needed with --backend searxng")
        if self.backend == "folder" and (self.folder is None or not self.folder.is_dir()):
            raise ValueError("--folder: must be a folder, with --backend folder")
        return self
