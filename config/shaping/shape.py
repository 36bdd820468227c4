"""Messages as a model's chat template can show them, by the shaping that was proven for it (`proof.py`).

What callers sent stays in its place, so a longer conversation still begins like a shorter one, for the prefix cache.
Outputs alone move: directly behind their calls, in the order of the calls, because most templates show no ids.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

Entry = TypeVar("Entry")
Message = Mapping[str, Any]
"""A chat message as chat templates take it: role, content (text or parts), tool_calls, reasoning, ..."""

GO_ON = "Continue."
NOTED = "Noted."
NO_OUTPUT = "(no output)"
NO_ANSWER = "(no answer)"
INSTRUCTION_HEAD = "Instructions of the developer:\n\n"
OUTPUT_HEAD = "Output of {}:\n\n"
CALLABLE = "You can call the functions that are given to you."


@dataclass(frozen=True, slots=True)
class Shaping:
    """Changes of messages. The fields stand in the order in which they are tried; all False: nothing is."""

    parts: bool = False
    """Contents are lists of parts, not texts."""
    numbered: bool = False
    """A call's id is its function's name and its place in the conversation, as Kimi K2 has it."""
    short: bool = False
    """A call's id has nine characters, as Mistral has it."""
    names: bool = False
    """An output has the name of its tool."""
    thinking: bool = False
    """An answer has its reasoning as `thinking`, too, if only an empty one."""
    thoughtless: bool = False
    """An answer has no reasoning."""
    begun: bool = False
    """A user's message comes first: `GO_ON`, if there is none."""
    asked: bool = False
    """A user's message is somewhere: `GO_ON`, if there is none."""
    joined: bool = False
    """Users' messages in a row are one."""
    noted: bool = False
    """Between an output and a user's message, the model says `NOTED`."""
    moved_later: bool = False
    """An instruction behind the first message is a user's message that says so."""
    moved_first: bool = False
    """So are instructions at the head."""
    single: bool = False
    """Each call is a turn, with its output."""
    apart: bool = False
    """The text before calls is a turn of its own."""
    resumed: bool = False
    """And the user says `GO_ON` behind it."""
    filled: bool = False
    """A call without an output has `NO_OUTPUT`."""
    worded: bool = False
    """An answer without a text has `NO_ANSWER`."""
    returned: bool = False
    """An output without its call is a user's message that says so."""
    instructed: bool = False
    """Beside tools there are instructions: `CALLABLE`, if there are none."""


AS_SENT = Shaping()


def shaped(messages: Sequence[Message], shaping: Shaping, *, has_tools: bool = False) -> list[Message]:
    """The messages as this shaping has them."""
    made: Iterable[Message] = _with_outputs(ordered(messages), shaping)
    if shaping.moved_first or shaping.moved_later:
        made = _moved(made, shaping)
    made = _taking_turns(made, shaping)
    if shaping.worded:
        made = [_worded(message) for message in made]
    if shaping.thinking:
        made = [_thinking(message) for message in made]
    if shaping.thoughtless:
        made = [{key: value for key, value in message.items() if key != "reasoning"} for message in made]
    if shaping.instructed and has_tools:
        made = _instructed(list(made))
    return _renamed(made, shaping) if shaping.numbered or shaping.short else list(made)


def ordered(messages: Sequence[Message]) -> list[Message]:
    """Outputs behind their calls (`behind_calls`), and instructions at the head as one message."""
    made: list[Message] = []
    for message in behind_calls(messages, lambda each: [call["id"] for call in _calls(each)], _answered):
        if message["role"] == "system" and len(made) == 1 and made[0]["role"] == "system":
            made[0] = {**made[0], "content": _joined(made[0]["content"], message["content"])}
        else:
            made.append(message)
    return made


def behind_calls(
    entries: Sequence[Entry], calls_of: Callable[[Entry], Sequence[str]], answered_by: Callable[[Entry], str | None]
) -> Iterator[Entry]:
    """The entries, with outputs directly behind the entry of their calls, in the order of the calls.

    What stands between a call and its output follows the output. Of calls with one id, an output answers the first that
    has none yet. `calls_of`: the ids of an entry's calls; `answered_by`: the id that an output answers.
    """
    waiting: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
    outputs: dict[int, dict[int, Entry]] = defaultdict(dict)
    rest: list[tuple[int, Entry]] = []
    for index, entry in enumerate(entries):
        for place, call_id in enumerate(calls_of(entry)):
            waiting[call_id].append((index, place))
        answered = answered_by(entry)
        if answered is not None and waiting.get(answered):
            called_at, place = waiting[answered].popleft()
            outputs[called_at][place] = entry
        else:
            rest.append((index, entry))
    for index, entry in rest:
        yield entry
        yield from (output for _, output in sorted(outputs[index].items(), key=itemgetter(0)))


def _answered(message: Message) -> str | None:
    return message.get("tool_call_id", "") if message["role"] == "tool" else None


def _with_outputs(messages: Iterable[Message], shaping: Shaping) -> Iterator[Message]:
    """The turns with calls, each with its outputs; and outputs that nothing called for."""
    calls: Message | None = None
    outputs: list[Message] = []
    for message in messages:
        if message["role"] == "tool" and calls is not None and _answers(message, calls, outputs):
            outputs.append(message)
            continue
        if calls is not None:
            yield from _turn(calls, outputs, shaping)
            calls, outputs = None, []
        if _calls(message):
            calls = message
        elif message["role"] == "tool" and shaping.returned:
            yield {
                "role": "user",
                "content": _joined(OUTPUT_HEAD.format(message.get("name") or "a tool"), message["content"], ""),
            }
        else:
            yield message
    if calls is not None:
        yield from _turn(calls, outputs, shaping)


def _answers(output: Message, turn: Message, outputs: Sequence[Message]) -> bool:
    calls = _calls(turn)
    return len(outputs) < len(calls) and output.get("tool_call_id") in [call["id"] for call in calls]


def _turn(turn: Message, outputs: Sequence[Message], shaping: Shaping) -> Iterator[Message]:
    calls, made = _calls(turn), list(outputs)
    if shaping.filled:
        made = [_output_of(call, outputs, index) for index, call in enumerate(calls)]
    if shaping.names:
        names = {call["id"]: call["function"]["name"] for call in calls}
        made = [{**output, "name": names.get(output["tool_call_id"], "")} for output in made]
    if shaping.apart and turn.get("content"):
        yield {key: value for key, value in turn.items() if key != "tool_calls"}
        if shaping.resumed:
            yield {"role": "user", "content": GO_ON}
        turn = {**{key: value for key, value in turn.items() if key != "reasoning"}, "content": ""}
    if not shaping.single or len(calls) == 1:
        yield turn
        yield from made
        return
    for index, call in enumerate(calls):
        yield {**(turn if not index else {"role": "assistant", "content": ""}), "tool_calls": [call]}
        yield from (output for output in made if output["tool_call_id"] == call["id"])


def _output_of(call: Mapping[str, Any], outputs: Sequence[Message], index: int) -> Message:
    found = [output for output in outputs if output["tool_call_id"] == call["id"]]
    return found[0] if found else {"role": "tool", "tool_call_id": call["id"], "content": NO_OUTPUT}


def _moved(messages: Iterable[Message], shaping: Shaping) -> Iterator[Message]:
    for index, message in enumerate(messages):
        moves = shaping.moved_later if index else shaping.moved_first
        if message["role"] == "system" and moves:
            yield {"role": "user", "content": _joined(INSTRUCTION_HEAD, message["content"], "")}
        else:
            yield message


def _taking_turns(messages: Iterable[Message], shaping: Shaping) -> list[Message]:
    made: list[Message] = []
    for message in messages:
        role, before = message["role"], made[-1]["role"] if made else None
        if role == "user":
            if before == "user" and shaping.joined:
                made[-1] = {**made[-1], "content": _joined(made[-1]["content"], message["content"])}
                continue
            if before == "tool" and shaping.noted:
                made.append({"role": "assistant", "content": NOTED})
        elif role != "system" and before in (None, "system") and len(made) < 2 and shaping.begun:
            made.append({"role": "user", "content": GO_ON})
        made.append(message)
    if (shaping.asked or shaping.begun) and all(message["role"] == "system" for message in made):
        made.append({"role": "user", "content": GO_ON})
    elif shaping.asked and all(message["role"] != "user" for message in made):
        at = 1 if made[0]["role"] == "system" else 0
        made.insert(at, {"role": "user", "content": GO_ON})
    return made


def _worded(message: Message) -> Message:
    is_empty = message["role"] == "assistant" and not message.get("content") and not _calls(message)
    return {**message, "content": NO_ANSWER} if is_empty else message


def _thinking(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    reasoning = message.get("reasoning") or ""
    return {**message, "reasoning": reasoning, "thinking": reasoning}


def _instructed(messages: list[Message]) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": CALLABLE}, *messages]


def _renamed(messages: Iterable[Message], shaping: Shaping) -> list[Message]:
    """The messages with other ids of calls."""
    ids: dict[str, str] = {}

    def shown(call_id: str, name: str) -> str:
        if shaping.short:
            return hashlib.sha256(call_id.encode()).hexdigest()[:9]
        return f"functions.{name}:{len(ids)}"

    made: list[Message] = []
    for message in messages:
        if calls := _calls(message):
            for call in calls:
                ids[call["id"]] = shown(call["id"], call["function"]["name"])
            message = {**message, "tool_calls": [{**call, "id": ids[call["id"]]} for call in calls]}
        elif message["role"] == "tool":
            call_id = message["tool_call_id"]
            message = {**message, "tool_call_id": ids.get(call_id) or shown(call_id, message.get("name") or "")}
        made.append(message)
    return made


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def _joined(first: Any, second: Any, joint: str = "\n\n") -> Any:
    """Two contents as one; each is a text, or a list of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{joint}{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
