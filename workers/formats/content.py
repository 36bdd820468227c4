"""The content of messages and results, and its text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workers.engine.base import InvalidPrompt

Result = str | Sequence[Mapping[str, Any]]
"""What a tool returned: text, or parts of a message's content."""


def text_of(content: str | Iterable[Mapping[str, Any]]) -> str:
    """The text of a message's content. Raises InvalidPrompt if a part is no text."""
    return content if isinstance(content, str) else "".join(map(part_text, content))


def part_text(part: Mapping[str, Any]) -> str:
    """The text of a text part or a refusal. Raises InvalidPrompt for any other part."""
    if "text" not in part and "refusal" not in part:
        raise InvalidPrompt(f"this model takes no part of type {part['type']!r}")
    text: str = part["text"] if "text" in part else part["refusal"]
    return text
