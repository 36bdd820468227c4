"""Harmony's token ids to the parts of messages: header, text, end.

Each message has a `StreamableParser` of its own, so a malformed message does not affect the next:

    BETWEEN --<|start|>--> HEADER --<|message|>--> CONTENT --<|end|> <|call|> <|return|>--> BETWEEN
                             `--<|end|>...--> BETWEEN          `--<|start|>--> HEADER

A turn begins within a header, because its prompt ends with `<|start|>assistant`. Models make these mistakes:

* They omit `<|start|>assistant` before `<|channel|>`: it is assumed, and so is the end of the text before it.
* They write a header that the parser refuses (two recipients): channel and recipient are read from its text.
* They begin a turn with plain text and no header: that text is the answer.
* They write the text right after the channel, without `<|message|>`, and end the message: that is its text.
* They write other special tokens in a text: these are no text. Any other header without a text, and tokens between
  messages, are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from openai_harmony import HarmonyError, Role, StreamableParser

from workers.engine import harmony_vocabulary as vocabulary
from workers.engine.harmony_vocabulary import ASSISTANT, CHANNEL, CONSTRAIN, FINAL, MESSAGE, START


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


MessagePart = Header | Content | Ended

_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_TEXT_AFTER_CHANNEL = re.compile(r"<\|channel\|>\s*(analysis|commentary|final)\s+(?!to=)([^<].*)\Z", re.DOTALL)
_AUTHOR = re.compile(r"\s*([^\s<]*)")
_ADDRESS = re.compile(r"\s*to(=|\Z)|\s*\Z")
"""Text that a header may begin with."""


class State(Enum):
    BETWEEN = "between"
    HEADER = "header"
    CONTENT = "content"


class HarmonyReader:
    """Reads one turn, token by token."""

    def __init__(self) -> None:
        self._state = State.HEADER
        self._header: list[int] = []
        self._has_author = True
        """The header's author stands in the prompt, or is assumed."""
        self._first = True
        """This is the turn's first message."""
        self._parser: Any = None
        self._length = 0
        """Characters so far of the open message."""

    def feed(self, token: int) -> list[MessagePart]:
        if token == vocabulary.special(START):
            return self._open(has_author=False)
        if self._state is State.HEADER:
            return self._in_header(token)
        if token == vocabulary.special(CHANNEL):
            return self._open(has_author=True) + self._in_header(token)
        return self._in_content(token) if self._state is State.CONTENT else []

    def flush(self) -> list[MessagePart]:
        """What was held back, at the end of the turn."""
        return self._end(None) if self._state is State.CONTENT else []

    def _open(self, *, has_author: bool) -> list[MessagePart]:
        """Begins a header and ends the open message."""
        parts = self.flush()
        self._state, self._header, self._has_author, self._first = State.HEADER, [], has_author, False
        return parts

    def _in_header(self, token: int) -> list[MessagePart]:
        if token in vocabulary.message_ends():
            self._state = State.BETWEEN
            return self._text_in_header()
        self._header.append(token)
        if token == vocabulary.special(MESSAGE):
            return [self._read_header()]
        if self._first and self._is_text():
            return self._answer_without_header()
        return []

    def _text_in_header(self) -> list[MessagePart]:
        """The message whose header has ended without `<|message|>`; nothing if no text follows its channel."""
        text = _text(self._header)
        found = _TEXT_AFTER_CHANNEL.search(text)
        return [self._header_from_text(text[: found.start(2)]), Content(found[2]), Ended()] if found else []

    def _is_text(self) -> bool:
        return not (vocabulary.encoding().is_special_token(self._header[0]) or _ADDRESS.match(_text(self._header)))

    def _answer_without_header(self) -> list[MessagePart]:
        """The turn has no header: its text so far is the answer."""
        header = self._start_answer()
        return [header, *(part for token in self._header for part in self._in_content(token))]

    def _start_answer(self) -> Header:
        """Continues as after a correct header of an answer."""
        tokens = [vocabulary.special(CHANNEL), *vocabulary.encode(FINAL), vocabulary.special(MESSAGE)]
        self._parser = _fed(Role.ASSISTANT, tokens)
        self._state, self._length = State.CONTENT, 0
        return Header(ASSISTANT, FINAL, None)

    def _read_header(self) -> Header:
        try:
            parser = _fed(Role.ASSISTANT, self._header) if self._has_author else _fed(None, self._whole_header())
        except HarmonyError:
            self._start_answer()  # to read the text
            return self._header_from_text(_text(self._header))
        self._parser, self._state, self._length = parser, State.CONTENT, 0
        recipient, kind = parser.current_recipient or "", parser.current_content_type
        if f"to={recipient}" not in _text(self._header):  # the parser took the content type for it
            recipient, kind = "", recipient or kind
        recipient, mark, rest = recipient.partition(CONSTRAIN)  # or for a part of it
        return Header(parser.current_role.value, parser.current_channel, recipient.strip() or None, mark + rest or kind)

    def _whole_header(self) -> list[int]:
        return [vocabulary.special(START), *self._header]

    def _header_from_text(self, text: str) -> Header:
        author = ASSISTANT if self._has_author else _first_group(_AUTHOR, text) or ASSISTANT
        return Header(author, _first_group(_CHANNEL, text), _first_group(_RECIPIENT, text))

    def _in_content(self, token: int) -> list[MessagePart]:
        if token in vocabulary.message_ends():
            return self._end(token)
        if vocabulary.encoding().is_special_token(token):
            return []
        self._parser.process(token)
        return self._content(self._parser.last_content_delta)

    def _end(self, token: int | None) -> list[MessagePart]:
        """Ends the message, with half a character that the parser may have held back."""
        self._state = State.BETWEEN
        if token is None:
            self._parser.process_eos()
        else:
            self._parser.process(token)
        whole = "".join(part.text for message in self._parser.messages for part in message.content)
        return [*self._content(whole[self._length :]), Ended()]

    def _content(self, text: str | None) -> list[MessagePart]:
        self._length += len(text or "")
        return [Content(text)] if text else []


def messages_in(tokens: Iterable[int]) -> list[tuple[Header, str]]:
    """The messages of a turn; the last one may be incomplete."""
    reader = HarmonyReader()
    found: list[tuple[Header, str]] = []
    for part in [*(each for token in tokens for each in reader.feed(token)), *reader.flush()]:
        if isinstance(part, Header):
            found.append((part, ""))
        elif isinstance(part, Content):
            header, text = found.pop()
            found.append((header, text + part.text))
    return found


def _fed(role: Role | None, tokens: Sequence[int]) -> Any:
    """A parser that has read these tokens. Raises HarmonyError."""
    parser = StreamableParser(vocabulary.encoding(), role)
    for token in tokens:
        parser.process(token)
    return parser


def _text(tokens: Sequence[int]) -> str:
    text: str = vocabulary.encoding().decode(tokens)
    return text


def _first_group(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] or None if match else None
