"""The kinds of MCP servers. Requests, the configuration and workers know them; so this module imports nothing."""

from __future__ import annotations

from typing import Literal

ServerKind = Literal["python", "browser", "mcp"]
"""`python` runs code_interpreter, and `browser` runs web_search; a request may use either as `mcp`, too."""
