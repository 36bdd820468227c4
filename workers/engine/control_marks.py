"""Control tokens that stand in callers' texts stay text.

A tokenizer reads `<|im_end|>` as the token that ends a turn, wherever it stands. So a break is put into each such mark
of a message, a tool or an argument before the chat template renders them: behind its first character. The template's
own marks have none. The tokenizer removes the breaks after it has looked for control tokens (`as_text.py`), so the
model reads the text as its caller wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN_BREAK = "\ufdd0\ufdd1"
"""Noncharacters, which no text should contain."""
SHOWN_BREAKS = ("\u200b", " ")
"""Breaks for tokenizers that cannot remove one: the model reads them."""
_BRACKETS = frozenset("<>[]{}|\uff5c")
_HTML = re.compile(
    r"</?(a|b|blockquote|br|caption|code|col|div|em|h\d|hr|i|img|li|ol|p|pre|s|span|strong|su[bp]|table|t[dhr]|tbody|"
    r"tfoot|thead|ul?)/?>"
)


def is_mark(token: str, *, special: bool) -> bool:
    """Whether a token that a tokenizer takes as a whole may steer a model.

    Runs of blanks, words and HTML that tokenizers have among such tokens (Gemma, OLMo) are ordinary text.
    """
    if len(token) < 2 or not token.strip(" \t\r\n\u2581"):
        return False
    return special or not (_BRACKETS.isdisjoint(token) or _HTML.fullmatch(token) is not None)


class ControlMarks:
    """The marks of one model, and the break that keeps them text."""

    def __init__(self, marks: Iterable[str], mark_break: str) -> None:
        pattern = _either(sorted(set(marks)))
        self._pattern = re.compile(pattern) if pattern else None
        self.mark_break = mark_break

    def in_messages(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with all marks broken; the same object if there are none."""
        made: Sequence[Mapping[str, Any]] = _all_of(messages, self._message)
        return made

    def in_value(self, value: Any) -> Any:
        """JSON with the marks in all its texts broken; the same object if there are none."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            made = {self._text(key): self.in_value(each) for key, each in value.items()}
            same = all(made.get(key, made) is each for key, each in value.items())
            return value if same else made
        return _all_of(value, self.in_value) if isinstance(value, list | tuple) else value

    def _text(self, text: str) -> str:
        pieces, end = [], 0
        while self._pattern is not None and (found := self._pattern.search(text, end)) is not None:
            pieces += [text[end : found.start() + 1], self.mark_break]
            end = found.start() + 1  # marks may overlap
        return "".join([*pieces, text[end:]]) if pieces else text

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        made = {name: self._field(name, value) for name, value in message.items()}
        return message if all(made[name] is value for name, value in message.items()) else made

    def _field(self, name: str, value: Any) -> Any:
        if name == "content" and isinstance(value, list):
            return self._parts(value)
        return _all_of(value, self._call) if name == "tool_calls" else self.in_value(value)

    def _parts(self, parts: list[Any]) -> list[Any]:
        """Templates may show neighbours without a gap, so texts in a row become one if a mark is in them."""
        texts = "".join(part.get("text", "\n") for part in parts)
        if self._text(texts) is texts:
            return parts
        joined: list[Any] = []
        for part in parts:
            if joined and part["type"] == joined[-1]["type"] == "text":
                joined[-1] = {"type": "text", "text": joined[-1]["text"] + part["text"]}
            else:
                joined.append(part)
        return [part if part["type"] == "image_url" else self.in_value(part) for part in joined]

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments are JSON, in which a mark may be written with escapes."""
        function: Mapping[str, Any] = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str) and "\\u" in arguments:
            plain = json.dumps(json.loads(arguments), ensure_ascii=False)
            if self._text(plain) is not plain:
                call = {**call, "function": {**function, "arguments": plain}}
        made: Mapping[str, Any] = self.in_value(call)
        return made


def _all_of(values: Any, made: Any) -> Any:
    found = [made(each) for each in values]
    return values if all(new is old for new, old in zip(found, values, strict=True)) else found


def _either(words: Sequence[str]) -> str:
    """A pattern of these sorted words that looks at each character once: a model may have thousands of them."""
    by_first: dict[str, list[str]] = {}
    for word in words:
        by_first.setdefault(word[:1], []).append(word[1:])
    if "" in by_first:
        return ""  # the shortest one decides
    choices = [re.escape(first) + _either(rest) for first, rest in by_first.items()]
    return f"(?:{'|'.join(choices)})" if len(choices) > 1 else "".join(choices)
