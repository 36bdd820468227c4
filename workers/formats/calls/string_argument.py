"""Custom tools: shown to the model as functions with one string, `input`, and read back from its JSON.

Theory. The model writes `{"input": "..."}`; the reader takes the string out of it as it comes. (Code for the
server's interpreter is read in the same way: its key is `code`.)

    HEAD  ---{"input":"--->  STRING  ---"--->  DONE
      `-----anything else--->  RAW

What is not of that form is passed on as it is: whatever the model wrote is the tool's input.
"""

from __future__ import annotations

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
"""Of the function that stands for a custom tool."""

_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<char>[^u]))", re.DOTALL)
_PLAIN = re.compile(r'[^"\\]+')
_CHARS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class State(Enum):
    HEAD = "head"
    STRING = "string"
    DONE = "done"
    RAW = "raw"


@cache
def _heads(key: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What finds `{"key": "`, and every beginning of it."""
    beginnings = r'(?:"\s*(?::\s*"?)?)?'
    for letter in reversed(key):
        beginnings = f"(?:{letter}{beginnings})?"
    return re.compile(rf'\s*\{{\s*"{key}"\s*:\s*"'), re.compile(rf'\s*(?:\{{\s*(?:"{beginnings})?)?')


class StringArgumentReader:
    """JSON arguments of one call with one string in them, piece by piece -> that string."""

    def __init__(self, key: str = INPUT_ARGUMENT) -> None:
        self._whole_head, self._head = _heads(key)
        self._state = State.HEAD
        self._text = ""
        """What was not understood yet: a head, or an escape sequence in two pieces."""
        self._high = 0
        """The first half of a surrogate pair."""

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
        """What is left at the end of the call: nothing, where it was JSON."""
        text, self._text = self._text, ""
        return text if self._state is State.RAW else ""

    def _read_head(self) -> None:
        if (head := self._whole_head.match(self._text)) is not None:
            self._state, self._text = State.STRING, self._text[head.end() :]
        elif self._head.fullmatch(self._text) is None:
            self._state = State.RAW

    def _read_string(self) -> str:
        said, place = [], 0
        while place < len(self._text):
            if (plain := _PLAIN.match(self._text, place)) is not None:
                said.append(self._paired("") + plain[0])
                place = plain.end()
            elif self._text[place] == '"':
                self._state, place = State.DONE, len(self._text)
            elif (escape := _ESCAPE.match(self._text, place)) is not None:
                said.append(self._escaped(escape))
                place = escape.end()
            else:
                break
        self._text = self._text[place:]
        return "".join(said)

    def _escaped(self, escape: re.Match[str]) -> str:
        if escape["char"]:
            return self._paired(_CHARS.get(escape["char"], escape["char"]))
        code = int(escape["code"], 16)
        if 0xD800 <= code < 0xDC00:
            said, self._high = self._paired(""), code
            return said
        if self._high and 0xDC00 <= code < 0xE000:
            whole = 0x10000 + ((self._high - 0xD800) << 10) + (code - 0xDC00)
            self._high = 0
            return chr(whole)
        return self._paired(chr(code) if not 0xDC00 <= code < 0xE000 else "\ufffd")

    def _paired(self, text: str) -> str:
        """`text`, behind a replacement where half a surrogate pair was left alone."""
        if self._high:
            self._high = 0
            return "\ufffd" + text
        return text
