"""Items of a response's context -> harmony messages.

* Reasoning goes to the analysis channel, preambles and calls to commentary, answers to final; the server's own
  python and browser are called in analysis, as gpt-oss was taught.
* Where an answer came, the chain of thought before it is dropped (with the python and browser calls in it);
  after the last one it stays: that is the tool loop under way.
* Instructions and the system and developer items behind them are one developer message, with the tools; later
  ones are developer messages of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openai_harmony import Author, DeveloperContent, Message, Role

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, HOSTED_CALLS
from workers.engine.base import EngineError
from workers.formats.calls.hosted import HostedKind
from workers.formats.calls.hosted_items import Approvals, Result, result_of
from workers.formats.calls.string_argument import INPUT_ARGUMENT
from workers.formats.harmony.encoding import ANALYSIS, ASSISTANT, COMMENTARY, FINAL

Json = dict[str, Any]
Item = Mapping[str, Any]

FUNCTIONS = "functions."
PYTHON, BROWSER = "python", "browser"
BROWSER_TOOLS = {"search": "browser.search", "open_page": "browser.open", "find_in_page": "browser.find"}
"""By the `action.type` of a web_search_call."""
_INSTRUCTING = ("system", "developer")
_CALLS = frozenset({"function_call", "custom_tool_call", APPROVAL_REQUEST, *HOSTED_CALLS})


def head_of(items: Sequence[Item], instructions: str | None) -> tuple[str | None, Sequence[Item]]:
    """The instructions that come first, those of the items at the head included, and the items behind."""
    said = [instructions] if instructions else []
    place = 0
    while place < len(items) and items[place].get("role") in _INSTRUCTING:
        said.append(text_of(items[place]["content"]))
        place += 1
    return "\n\n".join(filter(None, said)) or None, items[place:]


def messages_of(items: Sequence[Item]) -> list[Message]:
    """The messages of these items, chains of thought and all. Raises EngineError where there is no place for one."""
    names = {item["call_id"]: item["name"] for item in items if "call_id" in item and "name" in item}
    approvals = Approvals(items)
    made: list[Message] = []
    for place, item in enumerate(items):
        handler = _HANDLERS.get(item["type"])
        if handler is None:
            raise EngineError(f"harmony has no place for an item of type {item['type']!r}")
        made += handler(item, _Around(items, place, names, approvals))
    return made


def without_old_thoughts(messages: Sequence[Message]) -> list[Message]:
    """The messages but for the analysis before the last answer."""
    answers = (place for place, message in enumerate(messages) if _is_answer(message))
    last = max(answers, default=0)
    return [message for place, message in enumerate(messages) if place > last or message.channel != ANALYSIS]


def result_message(name: str, text: str, channel: str) -> Message:
    """What a tool answered."""
    message = Message.from_author_and_content(Author.new(Role.TOOL, name), text)
    return message.with_channel(channel).with_recipient(ASSISTANT)


def channel_of(name: str) -> str:
    """Where a tool of this name is called."""
    return ANALYSIS if name.split(".")[0] in (PYTHON, BROWSER) else COMMENTARY


def text_of(content: str | Iterable[Item]) -> str:
    """Raises EngineError for what is no text."""
    return content if isinstance(content, str) else "".join(map(_words, content))


def developer(text: str) -> Message:
    return Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(text))


class _Around:
    """Where an item stands."""

    def __init__(self, items: Sequence[Item], place: int, names: Mapping[str, str], approvals: Approvals) -> None:
        self._items = items
        self._place = place
        self._names = names
        self.approvals = approvals

    def function(self, call_id: str) -> str:
        """What was called."""
        return FUNCTIONS + self._names[call_id] if call_id in self._names else FUNCTIONS.rstrip(".")

    def leads_to_call(self) -> bool:
        """The model went on to a call."""
        behind = (item["type"] for item in self._items[self._place + 1 :] if item["type"] != "reasoning")
        return next(behind, None) in _CALLS


def _is_answer(message: Message) -> bool:
    return message.author.role is Role.ASSISTANT and message.channel == FINAL


def _assistant(text: str, channel: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def _message(item: Item, around: _Around) -> list[Message]:
    text, role = text_of(item["content"]), item["role"]
    if role in _INSTRUCTING:
        return [developer(text)] if text else []
    if role != ASSISTANT:
        return [Message.from_role_and_content(Role.USER, text)]
    phase = item.get("phase") or (COMMENTARY if around.leads_to_call() else FINAL)
    return [_assistant(text, COMMENTARY if phase == COMMENTARY else FINAL)]


def _reasoning(item: Item, _: _Around) -> list[Message]:
    text = text_of(item.get("content") or ()) or text_of(item.get("summary") or ())
    return [_assistant(text, ANALYSIS)] if text else []


def _call(name: str, text: str, kind: str = "json") -> Message:
    return _assistant(text, channel_of(name)).with_recipient(name).with_content_type(kind)


def _function_call(item: Item, _: _Around) -> list[Message]:
    return [_call(FUNCTIONS + item["name"], item["arguments"])]


def _custom_call(item: Item, _: _Around) -> list[Message]:
    return [_call(FUNCTIONS + item["name"], json.dumps({INPUT_ARGUMENT: item["input"]}, ensure_ascii=False))]


def _output(item: Item, around: _Around) -> list[Message]:
    return [result_message(around.function(item["call_id"]), text_of(item["output"]), COMMENTARY)]


def _ran(name: str, arguments: str, result: Result, kind: str = "json") -> list[Message]:
    """A call that the server ran, and what it gave."""
    return [_call(name, arguments, kind), result_message(name, text_of(result), channel_of(name))]


def _code_call(item: Item, _: _Around) -> list[Message]:
    return _ran(PYTHON, item.get("code") or "", result_of(item), "code")


def _search_call(item: Item, _: _Around) -> list[Message]:
    action, call = item.get("action") or {}, item.get("call") or {}
    name = BROWSER_TOOLS.get(action.get("type", ""), BROWSER_TOOLS["search"])
    return _ran(name, call.get("arguments") or _arguments(action), result_of(item), "code")


def _arguments(action: Item) -> str:
    """Of a call of which nothing else is known."""
    given = {"id" if name == "url" else name: action.get(name) for name in ("query", "pattern", "url")}
    return json.dumps({name: value for name, value in given.items() if value}, ensure_ascii=False)


def _mcp_call(item: Item, around: _Around) -> list[Message]:
    if around.approvals.is_shown_with_request(item):
        return []
    return _ran(_mcp_name(item), item["arguments"], result_of(item))


def _approval_request(item: Item, around: _Around) -> list[Message]:
    told = around.approvals.told(item)
    return [] if told is None else _ran(_mcp_name(item), item["arguments"], told.result)


def _mcp_name(item: Item) -> str:
    call = item.get("call") or {}
    if call.get("kind") == HostedKind.NONE.value:
        name: str = call["name"]
        return name
    return f"{item['server_label']}.{item['name']}"


def _nothing(_item: Item, _: _Around) -> list[Message]:
    return []


def _words(part: Item) -> str:
    if "text" not in part and "refusal" not in part:
        raise EngineError(f"this model takes no part of type {part['type']!r}")
    text: str = part["text"] if "text" in part else part["refusal"]
    return text


_HANDLERS: Mapping[str, Callable[[Item, _Around], list[Message]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "code_interpreter_call": _code_call,
    "web_search_call": _search_call,
    "mcp_call": _mcp_call,
    "mcp_list_tools": _nothing,
    APPROVAL_REQUEST: _approval_request,
    APPROVAL_RESPONSE: _nothing,
}
