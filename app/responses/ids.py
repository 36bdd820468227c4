"""Ids of responses and conversations: opaque to clients, in the order of their making for the index."""

from __future__ import annotations

import re
import secrets
import time

_SANE = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def random_suffix() -> str:
    """40 hexadecimal digits: milliseconds since 1970 (12), then 112 random bits (28)."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(14)}"


def new_response_id() -> str:
    return f"resp_{random_suffix()}"


def new_conversation_id() -> str:
    return f"conv_{random_suffix()}"


def may_exist(response_id: str) -> bool:
    """Whether an id could be one of ours at all."""
    return _SANE.fullmatch(response_id) is not None
