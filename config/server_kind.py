"""The kinds of MCP servers. Requests, the configuration and workers know them; so this module imports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

ServerKind = Literal["python", "browser", "mcp"]
"""`python` runs code_interpreter, and `browser` runs web_search; a request may use either as `mcp`, too."""

BUILT_IN: Mapping[str, ServerKind] = MappingProxyType({"python": "python", "browser": "browser"})
"""The kinds that run the hosted tools of OpenAI's API, by the label that sets the kind in LONGHAUL_TOOL_SERVERS."""

PROJECT_META = "longhaul/project"
"""In `_meta` of a call, for servers of these kinds alone: a hash of the project whose call it is."""

RENEWED_META = "longhaul/renewed"
"""In `_meta` of a call, for servers of these kinds alone: true if an earlier session of the response answered calls,
and ended with its server. What that session kept is lost."""

SEARCH_META = "longhaul/web_search"
"""In `_meta` of a call to a browser: what the request asks of its searches. A browser that knows it has the same key,
with true, in `_meta` of its tool `search`."""

SERVER_PREFIXES = tuple(f"LONGHAUL_{kind.upper()}_" for kind in BUILT_IN)
"""How variables of the servers that come with Longhaul begin."""
