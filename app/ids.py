"""Ids: opaque to clients, and sorted by time for the database's index."""

from __future__ import annotations

import re
import secrets
import time
from typing import Literal

IdKind = Literal["resp", "conv", "batch", "file", "part", "we", "evt", "proj", "svc_acct", "key", "audit_log", "action"]
_POSSIBLE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def random_suffix() -> str:
    """Returns 40 hexadecimal digits: milliseconds since 1970 (12), then 112 random bits (28)."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(14)}"


def new_id(kind: IdKind) -> str:
    return f"{kind}_{random_suffix()}"


def may_exist(object_id: str) -> bool:
    """Returns whether an id can be one of ours: none has other characters or is longer."""
    return _POSSIBLE_ID.fullmatch(object_id) is not None
