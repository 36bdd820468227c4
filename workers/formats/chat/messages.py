"""Steps of a conversation (`steps.py`) to messages for a chat template.

* Instructions come first. System and developer messages at the head join them in one system message, because most
  templates take a single one, and only there. Later ones stay in their positions.
* What the model wrote between two inputs is one assistant message: reasoning, text, calls. The template decides
  whether earlier reasoning is shown again.
* A custom tool's call is a call of the function that stands for it (`string_argument.py`).
* A hosted call is a call; the results follow after all the calls of its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from app.protocol.types import Json
from workers.engine.base import Message
from workers.formats.calls.client_tools import NO_CLIENT_TOOLS, ClientTools
from workers.formats.calls.hosted import NameStyle, as_object
from workers.formats.content import Result, part_text, text_of
from workers.formats.steps import Called, Ran, Returned, Said, Step, Thought, steps_of

Item = Mapping[str, Any]

_ROLES = {"developer": "system"}
"""Roles that chat templates do not know, and their roles there."""


def messages_of(
    items: Sequence[Item],
    instructions: str | None = None,
    client: ClientTools = NO_CLIENT_TOOLS,
) -> list[Message]:
    """The messages of these items. Raises InvalidPrompt if a chat template cannot show one.

    `client` has the names of the tools that the items call.
    """
    builder = _Builder()
    if instructions:
        builder.message("system", instructions)
    for step in steps_of(items, NameStyle.CHAT, client):
        builder.add(step)
    builder.add_results()
    builder.close()
    return list(builder.messages)


class _Builder:
    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._results: list[tuple[str, Result]] = []
        """Results of hosted calls in the open assistant message."""
        self._turn: int | None = None
        """The turn of these calls."""
        self._called: set[str] = set()
        """The ids of calls."""
        self._texts: dict[str, list[str]] = {}
        """By field, the texts of the last message. They are joined once: a message may have many thousands."""

    def add(self, step: Step) -> None:
        if self._results and not (isinstance(step, Called) or (isinstance(step, Ran) and step.turn == self._turn)):
            self.add_results()
        match step:
            case Said():
                self._said(step)
            case Thought():
                self._assistant("reasoning", step.text)
            case Called():
                self._call(step.call_id, step.name, as_object(step.arguments))
            case Returned():
                self._result(step.call_id, step.output, step.name)
            case Ran():
                self._turn = step.turn
                self._call(step.id, step.call.name, step.call.text)
                self._results.append((step.id, step.result))
            case _:
                assert_never(step)

    def add_results(self) -> None:
        """Adds the results of the hosted calls in the open assistant message."""
        results, self._results = self._results, []
        for call_id, result in results:
            self._result(call_id, result)

    def message(self, role: str, content: str | list[Json]) -> None:
        head = self.messages[0] if len(self.messages) == 1 else None
        if (
            role == "system"
            and head
            and head["role"] == "system"
            and isinstance(content, str)
            and isinstance(head["content"], str)
        ):
            self._texts.setdefault("content", [head["content"]]).append(content)
        else:
            self._append({"role": role, "content": content})

    def close(self) -> None:
        """Joins the texts of the last message."""
        for field, texts in self._texts.items():
            self.messages[-1][field] = _JOINTS[field].join(texts)
        self._texts.clear()

    def _append(self, message: Json) -> None:
        self.close()
        self.messages.append(message)

    def _said(self, step: Said) -> None:
        role = _ROLES.get(step.role, step.role)
        if role == "assistant":
            self._assistant("content", text_of(step.content))
        else:
            self.message(role, content_of(step.content))

    def _result(self, call_id: str, output: Result, name: str | None = None) -> None:
        """`name`: of the tool, which is shown if the call is not there."""
        own_name = {"name": name} if name is not None and call_id not in self._called else {}
        self._append({"role": "tool", "tool_call_id": call_id, **own_name, "content": content_of(output)})

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        self._called.add(call_id)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _assistant(self, field: str, text: str) -> None:
        turn = self._open_turn()
        if text:
            turn.setdefault(field, "")
            self._texts.setdefault(field, []).append(text)

    def _open_turn(self) -> Json:
        """The open assistant message, or a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._append({"role": "assistant", "content": ""})
        return self.messages[-1]


_JOINTS = {"content": "\n\n", "reasoning": "\n"}
"""The separator between the texts of a message."""


def content_of(content: Result) -> str | list[Json]:
    """The text, if all parts are text; otherwise a list of parts."""
    if isinstance(content, str):
        return content
    made = [_part(part) for part in content]
    if all(part["type"] == "text" for part in made):
        return "".join(part["text"] for part in made)
    return made


def _part(part: Item) -> Json:
    if part["type"] == "input_image":
        image = {"url": part["image_url"], "detail": part.get("detail") or "auto"}
        return {"type": "image_url", "image_url": image}
    return {"type": "text", "text": part_text(part)}
