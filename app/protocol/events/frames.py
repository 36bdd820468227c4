"""Events as frames of Server-Sent Events: a line `event: <type>`, a line `data: <JSON>`, an empty line.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html and Open Responses ("event" equals
"type", no "id" line). JSON on one line holds no raw newline, so an empty line ends a frame and nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

Event = dict[str, Any]

DONE = b"data: [DONE]\n\n"
KEEPALIVE_COMMENT = b": keepalive\n\n"

_BREAKS = {text.encode(): b"\\u%04x" % ord(text) for text in "\x85\u2028\u2029"}
"""What JSON leaves as it is and clients take for the end of a line, as httpx's `iter_lines` does -> its escape."""


def encode(event: Event) -> bytes:
    """Returns one event as one frame."""
    return b"event: %b\n%b" % (event["type"].encode(), encode_data(event))


def encode_data(value: Event) -> bytes:
    """Returns a frame that has no type."""
    return b"data: %b\n\n" % encode_line(value)


def encode_line(value: Any) -> bytes:
    """Returns JSON that is one line, without its end, however a client splits lines."""
    data = orjson.dumps(value)
    if not data.isascii():
        for raw, escaped in _BREAKS.items():
            data = data.replace(raw, escaped)
    return data


def encode_all(events: Iterable[Event]) -> bytes:
    return b"".join(map(encode, events))


def split(frames: bytes) -> list[bytes]:
    """Returns the single frames of what `encode_all` made."""
    return [frame + b"\n\n" for frame in frames.split(b"\n\n")[:-1]]


def decode(frames: bytes) -> list[Event]:
    """Returns the events of what `encode_all` made."""
    return [orjson.loads(frame.split(b"\ndata: ", 1)[1]) for frame in frames.split(b"\n\n")[:-1]]
