"""Celery's JSON by orjson, in a worker's process: messages, events and remote control.

kombu's own way (5.7) goes by Python's json with hooks for types that JSON does not have: a fifth of what a message
and its events cost Celery's main thread. What orjson cannot write, or what holds such a type, goes that way still.
"""

from __future__ import annotations

from typing import Any

import orjson
from kombu.serialization import register
from kombu.utils import json

_AS_KOMBU = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
_TYPED = '"__type__"'
"""How kombu marks a type that JSON does not have."""


def install() -> None:
    """For all that this process sends and receives as JSON."""
    register("json", dumps, loads, content_type="application/json", content_encoding="utf-8")


def dumps(value: Any) -> str:
    try:
        return orjson.dumps(value, option=_AS_KOMBU).decode()
    except TypeError:
        return str(json.dumps(value))


def loads(data: str | bytes | bytearray | memoryview) -> Any:
    """Raises ValueError."""
    text = data if isinstance(data, str) else bytes(data).decode()
    if _TYPED not in text:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:  # what it is stricter about (NaN, half a surrogate pair)
            pass
    return json.loads(text)
