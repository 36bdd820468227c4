"""What a worker keeps of the answer to a call, however large: as much as `results.py` can use of it.

It imports the standard library alone, for `stdio_supervisor.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MAX_TEXT_BYTES = 1024 * 1024
"""Most bytes of all texts of one answer together."""
MAX_IMAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of all images of one answer together, in base64."""
LEFT_OUT = "longhaul/left-out"
"""In `_meta` of an answer that was shortened: how many bytes of text are missing."""


def shortened(message: bytes | bytearray) -> bytes | bytearray:
    """A JSON-RPC message: the answer to a call without what is too much, anything else as it is."""
    try:
        parsed = json.loads(message)
        result = parsed["result"]
        blocks, data = list(result["content"]), result.get("structuredContent")
        if data is not None:
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            written = "" if says(texts, data) else json.dumps(data, ensure_ascii=False)
            if not written or len(written) > MAX_TEXT_BYTES:
                del result["structuredContent"]
                blocks += [{"type": "text", "text": written}] if written else []
        result["content"], missing = blocks, _cut(blocks)
        result["_meta"] = {**(result.get("_meta") or {}), LEFT_OUT: missing}
        return json.dumps(parsed, ensure_ascii=False).encode(errors="replace")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return message  # the MCP library says what is wrong with it


def says(texts: list[str], data: Any) -> bool:
    """Whether the texts of an answer are its structured content, which many servers wrap as `{"result": ...}`."""
    inner = data["result"] if isinstance(data, dict) and list(data) == ["result"] else data
    whole = "\n".join(texts)
    said = [texts, [_value(text) for text in texts], whole, _value(whole)]
    return data in said or inner in said


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _cut(blocks: Iterable[Any]) -> int:
    """Cuts texts, and empties images, sounds and files, that are too much. Returns the missing bytes of text."""
    room, missing = {"text": MAX_TEXT_BYTES, "data": MAX_IMAGE_BYTES, "blob": 0}, 0
    for part in (part for block in blocks for part in (block, block.get("resource") or {})):
        for name in room.keys() & part.keys():
            data = part[name].encode(errors="replace")
            kept = data[: room[name]] if name == "text" or len(data) <= room[name] else b""
            room[name] -= len(kept)
            part[name] = kept.decode(errors="ignore")
            if name == "text":  # what is empty is not shown, and has no line feed after it
                missing += len(data) - len(part[name].encode()) + (bool(data) and not part[name])
    return missing
