"""The content of messages and results, and its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from workers.engine.base import InvalidPrompt

_TAG = re.compile(r"<\s*/?\s*(file\d*)(?!\w)", re.IGNORECASE)
_ESCAPES = str.maketrans({'"': "&quot;", "<": "&lt;", ">": "&gt;"})

Result = str | Sequence[Mapping[str, Any]]
"""A tool's result: text, or parts of a message's content."""


def text_of(content: str | Iterable[Mapping[str, Any]]) -> str:
    """The text of a message's content. Raises InvalidPrompt if a part is no text."""
    return content if isinstance(content, str) else "".join(map(part_text, content))


def file_text(part: Mapping[str, Any]) -> str:
    """A file as models are shown it: its name, and its text.

    A text with such tags stands between others (`<file2 ...>`), so that it cannot end its file, or begin another.
    """
    if "text" not in part:
        raise InvalidPrompt("a file was not read before its request was stored")
    text, name = part["text"], " ".join((part.get("filename") or "").translate(_ESCAPES).split()) or "file"
    used = {found.lower() for found in _TAG.findall(text)}
    tag = next(each for number in count(1) if (each := "file" if number == 1 else f"file{number}") not in used)
    return f'<{tag} name="{name}">\n{text}\n</{tag}>\n'


def part_text(part: Mapping[str, Any]) -> str:
    """The text of a text part, of a file or of a refusal. Raises InvalidPrompt for any other part."""
    if part["type"] == "input_file":
        return file_text(part)
    if "text" not in part and "refusal" not in part:
        raise InvalidPrompt(f"this model takes no part of type {part['type']!r}")
    text: str = part["text"] if "text" in part else part["refusal"]
    return text
