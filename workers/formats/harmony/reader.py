"""Harmony's token ids -> messages as they are written: header, text, end.

Theory. One `StreamableParser` for each message, so that a bad one does no harm to the next:

    BETWEEN --<|start|>--> HEADER --<|message|>--> CONTENT --<|end|> <|call|> <|return|>--> BETWEEN
                             `--<|end|>...--> BETWEEN          `--<|start|>--> HEADER

A turn begins in a header, for its prompt ends in `<|start|>assistant`. What models get wrong, and what becomes of it:

* `<|start|>assistant` left out before `<|channel|>`: it is taken as written, and so is the end of a text before it.
* A header that the parser refuses (a recipient in two places): channel and recipient are read from its text.
* A turn that begins with plain text, and no header: that text is the answer.
* Other special tokens in a text are no text. A header without a text, and tokens between messages, are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from openai_harmony import HarmonyError, Role, StreamableParser

from workers.formats.harmony import encoding as encoding
from workers.formats.harmony.encoding import ASSISTANT, CHANNEL, CONSTRAIN, FINAL, MESSAGE, START


@dataclass(frozen=True, slots=True)
class Header:
    role: str
    channel: str | None
    recipient: str | None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """Characters of the message; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The message is over."""


Said = Header | Content | Ended

_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_AUTHOR = re.compile(r"\s*([^\s<]*)")
_ADDRESS = re.compile(r"\s*to(=|\Z)|\s*\Z")
"""What a header may begin with that is no special token."""


class State(Enum):
    BETWEEN = "between"
    HEADER = "header"
    CONTENT = "content"


class HarmonyReader:
    def __init__(self) -> None:
        self._state = State.HEADER
        self._header: list[int] = []
        self._begun = True
        """The header's author was said in the prompt, or is taken as said."""
        self._first = True
        """This is the turn's first message."""
        self._parser: Any = None
        self._said = 0
        """Characters of the open message."""

    def feed(self, token: int) -> list[Said]:
        if token == encoding.special(START):
            return self._open(begun=False)
        if self._state is State.HEADER:
            return self._in_header(token)
        if token == encoding.special(CHANNEL):
            return self._open(begun=True) + self._in_header(token)
        return self._in_content(token) if self._state is State.CONTENT else []

    def flush(self) -> list[Said]:
        """What is left at the end of the turn."""
        return self._end(None) if self._state is State.CONTENT else []

    def _open(self, *, begun: bool) -> list[Said]:
        """A header begins; whatever was open is over."""
        said = self.flush()
        self._state, self._header, self._begun, self._first = State.HEADER, [], begun, False
        return said

    def _in_header(self, token: int) -> list[Said]:
        if token in encoding.message_ends():
            self._state = State.BETWEEN
            return []
        self._header.append(token)
        if token == encoding.special(MESSAGE):
            return [self._read_header()]
        if self._first and self._is_text():
            return self._headless()
        return []

    def _is_text(self) -> bool:
        return not (encoding.encoding().is_special_token(self._header[0]) or _ADDRESS.match(_text(self._header)))

    def _headless(self) -> list[Said]:
        """The turn has no header: its text goes on."""
        header = self._answer()
        return [header, *(said for token in self._header for said in self._in_content(token))]

    def _answer(self) -> Header:
        """A header as it should be."""
        tokens = [encoding.special(CHANNEL), *encoding.encoded(FINAL), encoding.special(MESSAGE)]
        self._parser = _fed(Role.ASSISTANT, tokens)
        self._state, self._said = State.CONTENT, 0
        return Header(ASSISTANT, FINAL, None)

    def _read_header(self) -> Header:
        try:
            parser = _fed(Role.ASSISTANT, self._header) if self._begun else _fed(None, self._whole_header())
        except HarmonyError:
            self._answer()  # for the text alone
            return self._salvaged()
        self._parser, self._state, self._said = parser, State.CONTENT, 0
        recipient, kind = parser.current_recipient or "", parser.current_content_type
        if f"to={recipient}" not in _text(self._header):  # it takes the type of the content for one
            recipient, kind = "", recipient or kind
        recipient, mark, rest = recipient.partition(CONSTRAIN)  # or for the end of one
        return Header(parser.current_role.value, parser.current_channel, recipient.strip() or None, mark + rest or kind)

    def _whole_header(self) -> list[int]:
        return [encoding.special(START), *self._header]

    def _salvaged(self) -> Header:
        text = _text(self._header)
        author = ASSISTANT if self._begun else _found(_AUTHOR, text) or ASSISTANT
        return Header(author, _found(_CHANNEL, text), _found(_RECIPIENT, text))

    def _in_content(self, token: int) -> list[Said]:
        if token in encoding.message_ends():
            return self._end(token)
        if encoding.encoding().is_special_token(token):
            return []
        self._parser.process(token)
        return self._content(self._parser.last_content_delta)

    def _end(self, token: int | None) -> list[Said]:
        """With what the parser held back: half a character."""
        self._state = State.BETWEEN
        if token is None:
            self._parser.process_eos()
        else:
            self._parser.process(token)
        whole = "".join(part.text for message in self._parser.messages for part in message.content)
        return [*self._content(whole[self._said :]), Ended()]

    def _content(self, text: str | None) -> list[Said]:
        self._said += len(text or "")
        return [Content(text)] if text else []


def messages_in(tokens: Iterable[int]) -> list[tuple[Header, str]]:
    """The whole messages of a turn, and what is there of the last."""
    reader = HarmonyReader()
    found: list[tuple[Header, str]] = []
    for said in [*(each for token in tokens for each in reader.feed(token)), *reader.flush()]:
        if isinstance(said, Header):
            found.append((said, ""))
        elif isinstance(said, Content):
            header, text = found.pop()
            found.append((header, text + said.text))
    return found


def _fed(role: Role | None, tokens: Sequence[int]) -> Any:
    """A parser that has read these. Raises HarmonyError."""
    parser = StreamableParser(encoding.encoding(), role)
    for token in tokens:
        parser.process(token)
    return parser


def _text(tokens: Sequence[int]) -> str:
    text: str = encoding.encoding().decode(tokens)
    return text


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] or None if match else None
