"""Reads the one string of a call's JSON arguments while the model writes them.

A custom tool is shown to the model as a function with one string, `input`, so the model writes `{"input": "..."}`.
Code for code_interpreter comes in the same way, under `code`.

    HEAD  ---{"input":"--->  STRING  ---"--->  DONE
      |-----another object--->  OBJECT
      `-----anything else--->  RAW

An object that begins otherwise, with another key for instance, is read at its end. Text of any other form is passed on
unchanged: whatever the model wrote is the tool's input. A head that ends before its string has none.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from functools import cache

INPUT_ARGUMENT = "input"
CUSTOM_TOOL_PARAMETERS = {
    "type": "object",
    "properties": {INPUT_ARGUMENT: {"type": "string", "description": "The text that goes to the tool, as it is."}},
    "required": [INPUT_ARGUMENT],
    "additionalProperties": False,
}
"""The parameters of the function that stands for a custom tool."""

_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<char>[^u]))", re.DOTALL)
_PLAIN = re.compile(r'[^"\\]+')
_CHARS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class State(Enum):
    HEAD = "head"
    STRING = "string"
    DONE = "done"
    OBJECT = "object"
    RAW = "raw"


@cache
def _heads(key: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns for `{"key": "`, and for every beginning of it."""
    beginnings = r'(?:"\s*(?::\s*"?)?)?'
    for letter in reversed(key):
        beginnings = f"(?:{letter}{beginnings})?"
    return re.compile(rf'\s*\{{\s*"{key}"\s*:\s*"'), re.compile(rf'\s*(?:\{{\s*(?:"{beginnings})?)?')


class StringArgumentReader:
    """The JSON arguments of one call, piece by piece, to the string in them."""

    def __init__(self, key: str = INPUT_ARGUMENT) -> None:
        self._key = key
        self._whole_head, self._head = _heads(key)
        self._state = State.HEAD
        self._text = ""
        """Text that is not read yet: a head, or an escape sequence in two pieces."""
        self._high = 0
        """The first half of a surrogate pair."""

    @property
    def state(self) -> State:
        return self._state

    def feed(self, text: str) -> str:
        self._text += text
        if self._state is State.HEAD:
            self._read_head()
        if self._state is State.STRING:
            return self._read_string()
        if self._state is State.RAW:
            return self.flush()
        return ""

    def flush(self) -> str:
        """What is left at the end of the call: nothing, if the string came first and was passed on."""
        text, self._text = self._text, ""
        if self._state is State.OBJECT:
            return self._value_in(text)
        return text if self._state is State.RAW else ""

    def _value_in(self, text: str) -> str:
        try:
            value = json.loads(text)[self._key]
        except (ValueError, RecursionError, KeyError):
            return text
        alone = json.dumps({self._key: value})
        return StringArgumentReader(self._key).feed(alone) if isinstance(value, str) else text

    def _read_head(self) -> None:
        if (head := self._whole_head.match(self._text)) is not None:
            self._state, self._text = State.STRING, self._text[head.end() :]
        elif self._head.fullmatch(self._text) is None:
            self._state = State.OBJECT if self._text.lstrip().startswith("{") else State.RAW

    def _read_string(self) -> str:
        pieces, position = [], 0
        while position < len(self._text):
            if (plain := _PLAIN.match(self._text, position)) is not None:
                pieces.append(self._after_surrogate("") + plain[0])
                position = plain.end()
            elif self._text[position] == '"':
                pieces.append(self._after_surrogate(""))
                self._state, position = State.DONE, len(self._text)
            elif (escape := _ESCAPE.match(self._text, position)) is not None:
                pieces.append(self._unescape(escape))
                position = escape.end()
            else:
                break
        self._text = self._text[position:]
        return "".join(pieces)

    def _unescape(self, escape: re.Match[str]) -> str:
        if escape["char"]:
            return self._after_surrogate(_CHARS.get(escape["char"], escape["char"]))
        code = int(escape["code"], 16)
        if 0xD800 <= code < 0xDC00:
            before, self._high = self._after_surrogate(""), code
            return before
        if self._high and 0xDC00 <= code < 0xE000:
            whole = 0x10000 + ((self._high - 0xD800) << 10) + (code - 0xDC00)
            self._high = 0
            return chr(whole)
        return self._after_surrogate(chr(code) if not 0xDC00 <= code < 0xE000 else "\ufffd")

    def _after_surrogate(self, text: str) -> str:
        """`text`, after U+FFFD if half a surrogate pair came before it."""
        if self._high:
            self._high = 0
            return "\ufffd" + text
        return text
