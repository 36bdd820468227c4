"""The browser server's options: on the command line, or LONGHAUL_BROWSER_... in the environment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import DirectoryPath, Field, IPvAnyNetwork, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from workers.toolservers.browser.browser import Limits
from workers.toolservers.settings import Port, ServerSettings


class BrowserSettings(ServerSettings, Limits):
    """Serves gpt-oss's browser tools (search, open, find) over MCP. Each option is also a variable: --max-pages is
    LONGHAUL_BROWSER_MAX_PAGES. Secrets are variables only: EXA_API_KEY, and LONGHAUL_TOOLS_TOKEN, the bearer token
    that clients must send."""

    model_config = SettingsConfigDict(env_prefix="LONGHAUL_BROWSER_", cli_prog_name="longhaul tools browser")

    backend: Literal["searxng", "exa", "folder"]
    """where results come from"""
    url: Annotated[str, Field(pattern="^https?://")] | None = None
    """the SearXNG server, http://...; for exa another address of its API"""
    folder: DirectoryPath | None = None
    """the folder of HTML and text files"""

    port: Port = 8802
    """port to listen on; 0 takes any free one, which the log names"""

    allow_network: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = ()
    """also open pages in this network (such as 10.1.0.0/16), on any port; may be given several times; 0.0.0.0/0 and
    ::/0 open every server that this machine can reach"""
    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], NoDecode] = (80, 443)
    """ports of public addresses to open pages on"""

    max_page_bytes: Annotated[int, Field(ge=1024, le=2**28)] = 4 * 1024 * 1024
    """bytes read of a page, after decompression; the rest is left out"""
    max_sessions: Annotated[int, Field(ge=1, le=100_000)] = 256
    """open sessions; one more gets a 503"""

    @field_validator("allow_network", "ports", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _complete(self) -> BrowserSettings:
        if self.backend == "searxng" and self.url is None:
            raise ValueError("--url: is needed with --backend searxng")
        if self.backend == "folder" and self.folder is None:
            raise ValueError("--folder: is needed with --backend folder")
        return self

    def limits(self) -> Limits:
        """The limits of one session and of one call."""
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields})
