"""Small conversations of marked words, in the orders that clients send, and what each shows of a chat template.

A word has a line feed and both quotes: a template that prints data in place of text writes them otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from config.shaping.shape import Message, ordered

TOOL_NAME, KEY = "get_marked_word", "marked_key"
TOOL_WORDS = (TOOL_NAME, KEY, "get_other_word", "other_key")
"""Names and parameters of the tools. The second one is never called: a prompt that has its words shows the tools."""
TOOLS: Sequence[Mapping[str, Any]] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Returns a word.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": "Which word."}},
                "required": [key],
            },
        },
    }
    for name, key in (TOOL_WORDS[:2], TOOL_WORDS[2:])
)
IMAGE = {
    "type": "image_url",
    "image_url": {
        "url": "data:image/png;base64,"
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    },
}
"""One pixel."""

NAMES = {
    "s": "an instruction",
    "u": "a user's message",
    "a": "an answer",
    "c": "a call",
    "t": "an output",
    "i": "an image",
}
"""Kind of message (`kinds_of`) -> its name, for people."""


_UNANSWERED, _ORPHAN = "a call without an output", "an output without its call"
_SEVERAL, _TEXT = "several calls in a turn", "text before a call"
TOOLS_SHOWN = "tools"


@dataclass(frozen=True, slots=True)
class Word:
    """A text that a conversation has exactly once."""

    text: str
    role: str
    needed: bool = True
    """False: a thought, which a template may leave out."""
    call: tuple[int, int] = (0, 0)
    """Where its message began, and of several calls which one, for shapings that divide them."""

    def forms(self) -> tuple[str, ...]:
        """How it may stand in a prompt. Outputs of tools are data to many templates, which write them as JSON."""
        return (self.text, json.dumps(self.text)[1:-1]) if self.role == "t" else (self.text,)


@dataclass(frozen=True)
class Conversation:
    """Letters in the order of its messages.

    S instructions, U user, A assistant, H assistant with thoughts, I user with an image, O an output without its call;
    C call and output, X the same with text before, P with thoughts before, D two calls with outputs in the other order,
    M a call, instructions, and its output, N a call without an output. A small letter: the same, but its message, its
    answer, or its output is empty.
    """

    letters: str
    tools: bool | None = None
    """Whether tools are shown; None: if there are calls."""

    @property
    def has_tools(self) -> bool:
        return any(letter in "CXPDMN" for letter in self.letters.upper()) if self.tools is None else self.tools

    @property
    def messages(self) -> Sequence[Message]:
        return _made(self.letters)[0]

    @property
    def words(self) -> Sequence[Word]:
        return _made(self.letters)[1]

    @cached_property
    def traits(self) -> frozenset[str]:
        return traits_of(self.messages, has_tools=self.has_tools)


def _id(index: int) -> str:
    """As clients have them: longer than the nine characters of Mistral's."""
    return f"call_{index:024}"


@lru_cache(maxsize=256)
def _made(letters: str) -> tuple[Sequence[Message], Sequence[Word]]:
    messages: list[Message] = []
    words: list[Word] = []

    def word(role: str, *, needed: bool = True, number: int = 0) -> str:
        if letter.islower() and needed and role != "c":
            return ""
        text = f"word{len(words)}w \"of\"\n'{role}'" if role != "c" else f"word{len(words)}w"
        words.append(Word(text, role, needed, (place, number)))
        return text

    def call(index: int) -> dict[str, Any]:
        arguments = json.dumps({KEY: word("c", number=index % 2)})
        return {"id": _id(index), "type": "function", "function": {"name": TOOL_NAME, "arguments": arguments}}

    def output(index: int) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": _id(index), "content": word("t", number=index % 2)}

    for place, letter in enumerate(letters):
        at, kind = 2 * place, letter.upper()
        if kind in "SUA":
            role = {"S": "system", "U": "user", "A": "assistant"}[kind]
            messages.append({"role": role, "content": word(kind.lower())})
        elif kind == "H":
            thought = word("a", needed=False)
            messages.append({"role": "assistant", "reasoning": thought, "content": word("a")})
        elif kind == "I":
            parts = [{"type": "text", "text": word("u")}, IMAGE, {"type": "text", "text": word("u")}]
            messages.append({"role": "user", "content": parts})
        elif kind == "O":
            messages.append(output(at))
        else:
            said: dict[str, Any] = {"role": "assistant", "content": ""}
            if kind == "P":
                said["reasoning"] = word("a", needed=False)
            if kind == "X":
                said["content"] = word("a")
            said["tool_calls"] = [call(at), call(at + 1)] if kind == "D" else [call(at)]
            messages.append(said)
            if kind == "M":
                answered = output(at)
                messages += [{"role": "system", "content": word("s")}, answered]
            elif kind == "D":
                answered = output(at)
                messages += [output(at + 1), answered]
            elif kind != "N":
                messages.append(output(at))
    return messages, words


_ORDERS = (
    # what every template shows, or it shows nothing
    "U UAU UAUAU SU SUAU S SUAUAU "
    # instructions later
    "US USU UAS UASU SUS SUASU SUAUS UASUAU USUAU SA SAU SUAS "
    # users in a row, and answers first
    "UU UUU UUAU UAUU SUU SUUAU AU AUAU SAUAU UA A "
    # calls
    "UC UCU UCAU UCUAU SUC SUCU SUCAU UCC UCCU UCCAU UAUC UAUCU UAUCAU UCAUC UCAUCAU SUAUC SUAUCAU UCUCU "
    "UX UXU UXAU SUX UXC UCX UXAUXAU UD UDU UDAU SUD UDC UCD UAUDAU UXDAU UAUD "
    "UCS UCSU SUCS SUCSU UCSAU UCSC UM UMU SUM UMAU UDS UDSU SUDS UCUU UCUUAU "
    "C CU CAU SC SCU SCAU AUC AUCU UUC UUCAU SUUC USC USCAU UASUC UASUCAU D DAU SD X XAU "
    "UN UNU UNUAU SUNU UCNU UCN UO UOU UCOU "
    # thoughts
    "UHU UHUHU UP UPU UPAU UPHU UPP SUPAU UPUPU UHUP SUHU "
    # without a text
    "UaU UaUAU SUaUAU UhU UhUAU UCUaU UcU UcAU uAU UAuAU"
)
"""From the plain ones to those that have several things at once."""
ORDERS: Sequence[str] = tuple(_ORDERS.split())
PLAIN = Conversation("U")
CONVERSATIONS: Sequence[Conversation] = tuple(map(Conversation, ORDERS)) + tuple(
    Conversation(letters, tools=False) for letters in ("UC", "UCAU", "SUCAU", "UCU", "UDAU")
)
OFFERS: Sequence[Conversation] = tuple(
    Conversation(letters, tools=True) for letters in ("U", "SU", "UAU", "SUAU", "UUAU", "UAUCAU")
)
PICTURES: Sequence[Conversation] = tuple(map(Conversation, ("I", "SI", "UAI", "IAU", "II", "UCI")))


def kinds_of(messages: Sequence[Message]) -> Iterator[str]:
    """A letter for each message: s instructions, u user, a assistant, c calls, t output; i behind one with an image."""
    for message in messages:
        role = message["role"]
        yield {"system": "s", "user": "u", "tool": "t"}.get(role) or ("c" if message.get("tool_calls") else "a")
        content = message.get("content")
        if isinstance(content, list) and any(part["type"] == "image_url" for part in content):
            yield "i"


def traits_of(messages: Sequence[Message], *, has_tools: bool) -> frozenset[str]:
    """What is special about an order of messages. One with the traits of a refused conversation, and others, is refused
    as well: templates look at neighbours, at the head, at the end, and at what there is."""
    found: set[str] = set()
    before, in_order = "^", ordered(messages)
    waiting: set[str] = set()
    for kind, message in _with_kinds(in_order):
        if before == "t" and kind != "t" and waiting:
            found.add(_UNANSWERED)
            waiting = set()
        elif before == "c" and kind != "t":
            found.add(_UNANSWERED)
        found.add(before + kind)
        if kind == "c":
            waiting = {call["id"] for call in message["tool_calls"]}
            found |= {_SEVERAL} if len(waiting) > 1 else set()
            found |= {_TEXT} if message.get("content") else set()
        elif kind == "t":
            found |= {_ORPHAN} if message.get("tool_call_id") not in waiting else set()
            waiting.discard(message.get("tool_call_id", ""))
        if kind in "ac" and message.get("reasoning"):
            found.add("thought and " + kind)
        if kind in "uat" and not message.get("content"):
            found.add(f"{NAMES[kind]} without text")
        before = kind
    found.add(before + "$")
    if before == "c" or waiting:
        found.add(_UNANSWERED)
    if has_tools:
        found.add(TOOLS_SHOWN)
    elif any(pair.endswith("c") for pair in found):
        found.add("calls, but no tools")
    return frozenset(found)


def _with_kinds(messages: Sequence[Message]) -> Iterator[tuple[str, Message]]:
    for message in messages:
        for kind in kinds_of([message]):
            yield kind, message


def said_of(traits: Iterable[str]) -> str:
    """The traits in words, for people."""
    return " and ".join(_trait(trait) for trait in sorted(traits, key=lambda each: (len(each) > 2, each)))


def _trait(trait: str) -> str:
    if len(trait) > 2:
        return {"thought and a": "thoughts before an answer", "thought and c": "thoughts before a call"}.get(
            trait, trait
        )
    before, after = trait[0], trait[1]
    if before == "^":
        return f"{NAMES[after]} first"
    return f"{NAMES[before]} last" if after == "$" else f"{NAMES[after]} behind {NAMES[before]}"
