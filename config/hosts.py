"""The host names that are ours: a request that names another one is not meant for us.

A web page may point its own name at our address, and is then of one origin with us (DNS rebinding). An address cannot
be pointed elsewhere, so addresses are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_NAME = re.compile(r"([a-z0-9_.-]+)(?::\d+)?")
_ADDRESS = re.compile(r"(?:\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\])(?::\d+)?")


def in_url(host: str) -> str:
    """The host as URLs have it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def is_allowed_host(sent: Sequence[str], allowed: Collection[str]) -> bool:
    """Whether the one Host header names an address, localhost or an allowed name."""
    if len(sent) != 1:
        return False
    host = sent[0].lower()
    if "*" in allowed or _ADDRESS.fullmatch(host):
        return True
    named = _NAME.fullmatch(host)
    name = named[1].removesuffix(".") if named else ""
    return name in allowed or name == "localhost" or name.endswith(".localhost")
