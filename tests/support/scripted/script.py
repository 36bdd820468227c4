"""The scripted engine's language: tokens, prompts, and replies.

Tokens are the bytes of UTF-8 text, or in a prompt several of them, and marks. The last message of a user or a tool
decides the reply:

    /say TEXT         TEXT
    /raw TEXT         TEXT, in which <think>, </think>, <tool_call> and </tool_call> are marks
    /count N          1 2 3 ... N
    /repeat N TEXT    TEXT, N times
    /fail N           N tokens, then this request fails (EngineError)
    /abort N          N tokens, then the engine gives up this request (RequestAborted); what goes on behind some ends
    /die N            N tokens, then the whole engine is dead (EngineDead), for good
    /hang N           N tokens, then nothing until the request is aborted
    /turns A /then B  A, as by /raw or any of the above; B after the results of the tools that A called, and so on; the
                      last one repeats. {results} stands for the results
    Write a summary   Summary of: what users and tools said before; with `/summary A` among it, A as by any of the above
                      (Claude Code asks for one in other words)
    TEXT              You said: TEXT (of a tool: The tool said: TEXT)

With `enable_thinking` among the template's arguments, every reply begins with reasoning, except those of /raw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, count, takewhile
from typing import Any

from config.shaping.shape import INSTRUCTION_HEAD
from workers.engine.base import InvalidPrompt, Message

END = 256
"""Ends a message of the prompt, and the reply."""
BEGIN = 257
"""Begins a message of the prompt; its role and a line feed follow."""
ANSWER = 258
"""Ends the prompt; the reply follows."""
THINK, THINK_END, CALL, CALL_END = MARKS = range(259, 263)
MARK_TEXTS: Mapping[int, str] = dict(zip(MARKS, ("<think>", "</think>", "<tool_call>", "</tool_call>"), strict=True))

_TURNS, _THEN = "/turns ", " /then "
_SUMMARISE, _SUMMARY = ("Write a summary", "CRITICAL: Respond with TEXT ONLY"), "/summary "
"""How Longhaul, and Claude Code, ask for a summary."""
SUMMED = 2000
"""Characters of each text in a summary, which is shorter than what it stands for, and of a tool's in an answer: what
agents read is long."""
_MARKS = {text: token for token, text in MARK_TEXTS.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _MARKS)) + ")")
_AROUND = re.compile(
    r"\s*(?:<(?P<tag>system-reminder|(?:local-)?command-\w+)>.*?</(?P=tag)>"
    r"|This session is being continued from .*? as if the break never happened\.)\s*",
    re.DOTALL,
)
"""What Claude Code puts around a user's own words."""
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_REASONING = "<think>\nI know what to say.\n</think>\n\n"


class Ending(Enum):
    """How a reply ends after its text."""

    STOP = "stop"
    FAIL = "fail"
    ABORT = "abort"
    DIE = "die"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Reply:
    tokens: Sequence[int]
    ending: Ending = Ending.STOP


def text_tokens(text: str) -> bytes:
    return text.encode(errors="replace")


def marked_tokens(text: str) -> tuple[int, ...]:
    """The tokens of text with marks in it."""
    pieces = (((_MARKS[piece],) if piece in _MARKS else text_tokens(piece)) for piece in _SPLIT.split(text))
    return tuple(token for piece in pieces for token in piece)


def framed(
    messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> list[bytes | int]:
    """The prompt in pieces: text, and marks. Raises InvalidPrompt for a message with an unknown role."""
    texts = [("tools", json.dumps(list(tools)))] if tools else []
    pieces: list[bytes | int] = []
    for role, text in (*texts, *map(_message, messages)):
        pieces += (BEGIN, f"{role}\n{text}".encode(errors="replace"), END)
    return [*pieces, *([THINK] if template_args.get("enable_thinking") else []), ANSWER]


def size_of(pieces: Iterable[bytes | int], bytes_per_token: int = 1) -> int:
    """The tokens of a prompt, which would take ten times the memory of its pieces."""
    return sum(-(-len(piece) // bytes_per_token) if isinstance(piece, bytes) else 1 for piece in pieces)


def tokens_of(pieces: Iterable[bytes | int], bytes_per_token: int = 1) -> Iterator[int]:
    return chain.from_iterable(
        _packed(piece, bytes_per_token) if isinstance(piece, bytes) else (piece,) for piece in pieces
    )


def _packed(piece: bytes, size: int) -> Iterable[int]:
    """Tokens of `size` bytes, above all others: a 2 is in front of the bytes."""
    if size == 1:
        return piece
    return (int.from_bytes(b"\2" + piece[at : at + size]) for at in range(0, len(piece), size))


def _bytes_of(token: int) -> bytes:
    return bytes([token]) if token < END else token.to_bytes((token.bit_length() + 7) // 8)[1:]


def reply_to(prompt: Sequence[int]) -> Reply:
    """The reply to a prompt, which comes without its ANSWER."""
    messages = list(_without_reminders(_messages(prompt)))
    asking = [message for message in messages if message[0] in ("user", "tool")]
    role, text = asking[-1] if asking else ("user", "")
    if text.startswith(_SUMMARISE):
        text = _summary_of([said for _, said in asking[:-1]])
    if (scripted := _turn_of(messages)) is not None:
        text = scripted if scripted.startswith("/") else f"/raw {scripted}"
    command, _, rest = text.partition(" ")
    if command == "/raw":
        return Reply(marked_tokens(rest))
    reasoning = marked_tokens(_REASONING) if prompt and prompt[-1] == THINK else ()
    try:
        reply = _COMMANDS[command](rest)
    except (KeyError, ValueError):
        said = f"The tool said: {text[:SUMMED]}" if role == "tool" else f"You said: {text}"
        reply = Reply(text_tokens(said))
    return Reply((*reasoning, *reply.tokens), reply.ending) if reasoning else reply


def _message(message: Message) -> tuple[str, str]:
    """Role and text."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise InvalidPrompt(f"the template knows no role {role!r}")
    if isinstance(content, list):
        content = "".join(part.get("text", f"[{part['type']}]") for part in content)
    reasoning = f"<think>{message['reasoning']}</think>" if message.get("reasoning") else ""
    calls = "".join(f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ()))
    return role, f"{reasoning}{content or ''}{calls}"


def _messages(prompt: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Role and text of each message."""
    end = 0
    for _ in range(prompt.count(BEGIN)):
        begin = prompt.index(BEGIN, end)
        end = prompt.index(END, begin)
        role, _, text = b"".join(map(_bytes_of, prompt[begin + 1 : end])).decode(errors="replace").partition("\n")
        yield role, text


def _without_reminders(messages: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The messages without what clients put around a user's words, and instructions that were moved into a user's
    message: a user's message that is nothing else is none."""
    for role, text in messages:
        own = _AROUND.sub("", text)
        if role == "user":
            own = own.partition(INSTRUCTION_HEAD)[0]
        if own.strip() or own == text or role != "user":
            yield role, own


def _turn_of(messages: Sequence[tuple[str, str]]) -> str | None:
    """The next part of a script of turns; None if the user's last message is no such script."""
    asked = max((index for index, (role, _) in enumerate(messages) if role == "user"), default=None)
    if asked is None or not messages[asked][1].startswith(_TURNS):
        return None
    since = messages[asked + 1 :]
    written = sum(role == "assistant" for role, _ in since)
    results = [text for _, text in takewhile(lambda message: message[0] == "tool", reversed(since))]
    turns = messages[asked][1].removeprefix(_TURNS).split(_THEN)
    return turns[min(written, len(turns) - 1)].replace("{results}", "; ".join(reversed(results)))


def _summary_of(texts: Sequence[str]) -> str:
    """The command that writes the summary."""
    scripted = (text.removeprefix(_SUMMARY) for text in reversed(texts) if text.startswith(_SUMMARY))
    return next(scripted, f"/say Summary of: {' | '.join(text[:SUMMED] for text in texts)}")


def _repeated(rest: str) -> Reply:
    times, _, text = rest.partition(" ")
    return Reply(text_tokens(text * int(times)))


def _cut_short(ending: Ending) -> Callable[[str], Reply]:
    def reply(rest: str) -> Reply:
        length, text = int(rest), bytearray()
        numbers = count(1)
        while len(text) < length:
            text += b"%d " % next(numbers)
        return Reply(bytes(text[:length]), ending)

    return reply


_COMMANDS: Mapping[str, Callable[[str], Reply]] = {
    "/say": lambda rest: Reply(text_tokens(rest)),
    "/count": lambda rest: Reply(text_tokens(" ".join(str(number + 1) for number in range(int(rest))))),
    "/repeat": _repeated,
    "/fail": _cut_short(Ending.FAIL),
    "/abort": _cut_short(Ending.ABORT),
    "/die": _cut_short(Ending.DIE),
    "/hang": _cut_short(Ending.HANG),
}
