"""Steps of a conversation (`steps.py`) to harmony messages.

* Reasoning goes to the analysis channel, preambles and calls to commentary, answers to final. The hosted python and
  browser are called in analysis, as gpt-oss was trained.
* Reasoning before an answer is dropped, with the python and browser calls in it. Reasoning after the last answer
  stays: it belongs to the current tool loop.
* Instructions and the system and developer items after them are one developer message, with the tools. Later ones are
  developer messages of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, assert_never

from openai_harmony import Author, DeveloperContent, Message, Role

from app.protocol.item_types import ADDITIONAL_TOOLS
from config.shaping.shape import behind_calls
from workers.engine.harmony_vocabulary import ANALYSIS, ASSISTANT, COMMENTARY, FINAL
from workers.formats.calls.client_tools import ClientTools
from workers.formats.calls.hosted import NameStyle
from workers.formats.content import text_of
from workers.formats.steps import Called, Ran, Returned, Said, Step, Thought, steps_of

Item = Mapping[str, Any]

FUNCTIONS = "functions."
PYTHON, BROWSER = "python", "browser"
_INSTRUCTION_ROLES = ("system", "developer")


def head_of(items: Sequence[Item], instructions: str | None) -> tuple[str | None, Sequence[Item]]:
    """The instructions with those of the items at the head, and the items after these."""
    texts = [instructions] if instructions else []
    items = [item for item in items if item["type"] != ADDITIONAL_TOOLS]  # they are in the list of tools
    index = 0
    while index < len(items) and items[index].get("role") in _INSTRUCTION_ROLES:
        texts.append(text_of(items[index]["content"]))
        index += 1
    return "\n\n".join(filter(None, texts)) or None, items[index:]


def messages_of(items: Sequence[Item], client: ClientTools) -> list[Message]:
    """The messages of these items, all reasoning included, outputs behind their calls. Raises InvalidPrompt if harmony
    cannot show one.

    `client` has the names of the tools that the items call.
    """
    steps = steps_of(items, NameStyle.HARMONY, client)
    runs = groupby(steps, lambda step: isinstance(step, Called | Thought))  # what is of one turn
    turns = [list(turn) for is_turn, run in runs for turn in ([run] if is_turn else zip(run))]
    return [message for turn in behind_calls(turns, _called, _answered) for step in turn for message in _messages(step)]


def _called(turn: Sequence[Step]) -> list[str]:
    return [step.call_id for step in turn if isinstance(step, Called)]


def _answered(turn: Sequence[Step]) -> str | None:
    return turn[0].call_id if isinstance(turn[0], Returned) else None


def without_old_reasoning(messages: Sequence[Message]) -> list[Message]:
    """The messages without the analysis before the last answer."""
    own = (index for index, message in enumerate(messages) if message.author.role is Role.ASSISTANT)
    last = max((index for index in own if messages[index].channel == FINAL), default=-1)
    return [message for index, message in enumerate(messages) if index > last or message.channel != ANALYSIS]


def result_message(name: str, text: str, channel: str) -> Message:
    """The result of a tool of this name."""
    message = Message.from_author_and_content(Author.new(Role.TOOL, name), text)
    return message.with_channel(channel).with_recipient(ASSISTANT)


def channel_of(name: str) -> str:
    """The channel in which a tool of this name is called."""
    return ANALYSIS if name.split(".")[0] in (PYTHON, BROWSER) else COMMENTARY


def developer(text: str) -> Message:
    return Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(text))


def _assistant(text: str, channel: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def _messages(step: Step) -> list[Message]:
    match step:
        case Said():
            return _said(step)
        case Thought():
            return [_assistant(step.text, ANALYSIS)] if step.text else []
        case Called():
            return [_call(FUNCTIONS + step.name, step.arguments)]
        case Returned():
            name = FUNCTIONS.rstrip(".") if step.name is None else FUNCTIONS + step.name
            return [result_message(name, text_of(step.output), COMMENTARY)]
        case Ran(call=call):
            result = result_message(call.name, text_of(step.result), channel_of(call.name))
            return [_call(call.name, call.text, call.content_type), result]
        case _:
            assert_never(step)


def _said(step: Said) -> list[Message]:
    text = text_of(step.content)
    if step.role in _INSTRUCTION_ROLES:
        return [developer(text)] if text else []
    if step.role != ASSISTANT:
        return [Message.from_role_and_content(Role.USER, text)]
    if not text:
        return []  # it stands for an answer that is missing: what came before it is still needed
    phase = step.phase or (COMMENTARY if step.leads_to_call else FINAL)
    return [_assistant(text, COMMENTARY if phase == COMMENTARY else FINAL)]


def _call(name: str, text: str, kind: str = "json") -> Message:
    return _assistant(text, channel_of(name)).with_recipient(name).with_content_type(kind)
