"""The scripted engine's language: tokens, prompts, and the replies that they get.

Tokens are the bytes of UTF-8 text, and marks. The last message of a user or a tool decides the reply:

    /say TEXT         TEXT
    /raw TEXT         TEXT, in which <think>, </think>, <tool_call> and </tool_call> are marks
    /count N          1 2 3 ... N
    /repeat N TEXT    TEXT, N times
    /fail N           N tokens, then this request fails (EngineError)
    /die N            N tokens, then the whole engine is dead (EngineDead), for good
    /hang N           N tokens, then nothing until the request is aborted
    TEXT              You said: TEXT (of a tool: The tool said: TEXT)

With `enable_thinking` among the template's arguments, all replies but those of /raw begin with a thought.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any

from workers.engine.base import EngineError, Message

END = 256
"""Ends a message of the prompt, and the reply."""
BEGIN = 257
"""Begins a message of the prompt; its role and a line feed follow."""
ANSWER = 258
"""Ends the prompt: what follows is the reply."""
THINK, THINK_END, CALL, CALL_END = MARKS = range(259, 263)
MARK_TEXTS: Mapping[int, str] = dict(zip(MARKS, ("<think>", "</think>", "<tool_call>", "</tool_call>"), strict=True))

_MARKS = {text: token for token, text in MARK_TEXTS.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _MARKS)) + ")")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_THOUGHT = "<think>\nI know what to say.\n</think>\n\n"


class Ending(Enum):
    """What comes after the text of a reply."""

    STOP = "stop"
    FAIL = "fail"
    DIE = "die"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Reply:
    tokens: tuple[int, ...]
    ending: Ending = Ending.STOP


def text_tokens(text: str) -> tuple[int, ...]:
    return tuple(text.encode(errors="replace"))


def marked_tokens(text: str) -> tuple[int, ...]:
    """Text with marks in it."""
    pieces = (((_MARKS[piece],) if piece in _MARKS else text_tokens(piece)) for piece in _SPLIT.split(text))
    return tuple(token for piece in pieces for token in piece)


def rendered(
    messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    """The prompt. Raises EngineError where a message is none."""
    head = _framed("tools", text_tokens(json.dumps(list(tools)))) if tools else ()
    turns = (token for message in messages for token in _message(message))
    return (*head, *turns, *([THINK] if template_args.get("enable_thinking") else []), ANSWER)


def reply_to(prompt: Sequence[int]) -> Reply:
    """What is said to a prompt without its ANSWER."""
    role, text = _last_input(prompt)
    command, _, rest = text.partition(" ")
    if command == "/raw":
        return Reply(marked_tokens(rest))
    thought = marked_tokens(_THOUGHT) if prompt and prompt[-1] == THINK else ()
    try:
        reply = _COMMANDS[command](rest)
    except (KeyError, ValueError):
        reply = Reply(text_tokens(f"{'The tool' if role == 'tool' else 'You'} said: {text}"))
    return Reply(thought + reply.tokens, reply.ending)


def _message(message: Message) -> tuple[int, ...]:
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise EngineError(f"the template knows no role {role!r}")
    if isinstance(content, list):
        content = "".join(part.get("text", f"[{part['type']}]") for part in content)
    thought = f"<think>{message['reasoning']}</think>" if message.get("reasoning") else ""
    calls = "".join(f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ()))
    return _framed(role, text_tokens(f"{thought}{content or ''}{calls}"))


def _framed(role: str, text: Iterable[int]) -> tuple[int, ...]:
    return (BEGIN, *role.encode(), *b"\n", *text, END)


def _last_input(prompt: Sequence[int]) -> tuple[str, str]:
    """Role and text of the last message that the model did not write itself."""
    found = ("user", "")
    for place, token in enumerate(prompt):
        if token == BEGIN:
            message = bytes(prompt[place + 1 : prompt.index(END, place)]).decode(errors="replace")
            role, _, text = message.partition("\n")
            found = (role, text) if role in ("user", "tool") else found
    return found


def _repeated(rest: str) -> Reply:
    times, _, text = rest.partition(" ")
    return Reply(text_tokens(text * int(times)))


def _cut_short(ending: Ending) -> Callable[[str], Reply]:
    def reply(rest: str) -> Reply:
        length, text = int(rest), bytearray()
        numbers = count(1)
        while len(text) < length:
            text += b"%d " % next(numbers)
        return Reply(tuple(text[:length]), ending)

    return reply


_COMMANDS: Mapping[str, Callable[[str], Reply]] = {
    "/say": lambda rest: Reply(text_tokens(rest)),
    "/count": lambda rest: Reply(text_tokens(" ".join(str(number + 1) for number in range(int(rest))))),
    "/repeat": _repeated,
    "/fail": _cut_short(Ending.FAIL),
    "/die": _cut_short(Ending.DIE),
    "/hang": _cut_short(Ending.HANG),
}
