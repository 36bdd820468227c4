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

_SIGN = r'(?:[^"\\]|\\[^u]|\\u[0-9a-f]{4})'
_HIGH = r"\\ud[89ab][0-9a-f]{2}"
_WHOLE = re.compile(rf'(?:{_HIGH}(?={_SIGN}|")|(?!{_HIGH}){_SIGN})*', re.DOTALL | re.IGNORECASE)
"""A string's beginning without a sign of which only a part is there: half an escape, or half a surrogate pair."""
_ESCAPE = re.compile(r'\\(?:["\\/bfnrtu]|(.))', re.DOTALL)
_LONE = re.compile("[\ud800-\udfff]")


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
        self.state = State.HEAD
        self._text = ""
        """Text that is not read yet: a head, or a part of a sign."""

    def feed(self, text: str) -> str:
        self._text += text
        if self.state is State.HEAD:
            self._read_head()
        if self.state is State.STRING:
            return self._read_string()
        if self.state is State.RAW:
            return self.flush()
        return ""

    def flush(self) -> str:
        """What is left at the end of the call: nothing, if the string came first and was passed on."""
        text, self._text = self._text, ""
        if self.state is State.OBJECT:
            return self._value_in(text)
        return text if self.state is State.RAW else ""

    def _value_in(self, text: str) -> str:
        try:
            value = json.loads(text)[self._key]
        except (ValueError, RecursionError, KeyError):
            return text
        alone = json.dumps({self._key: value})
        return StringArgumentReader(self._key).feed(alone) if isinstance(value, str) else text

    def _read_head(self) -> None:
        if (head := self._whole_head.match(self._text)) is not None:
            self.state, self._text = State.STRING, self._text[head.end() :]
        elif self._head.fullmatch(self._text) is None:
            self.state = State.OBJECT if self._text.lstrip().startswith("{") else State.RAW

    def _read_string(self) -> str:
        """Models also write line ends, and escapes that JSON does not know: these stand for themselves."""
        whole = _WHOLE.match(self._text)
        assert whole is not None
        self._text = self._text[whole.end() :]
        if self._text.startswith('"'):
            self.state, self._text = State.DONE, ""
        known = _ESCAPE.sub(lambda escape: escape[1] or escape[0], whole[0])
        string: str = json.loads(f'"{known}"', strict=False)
        return _LONE.sub("\ufffd", string)
