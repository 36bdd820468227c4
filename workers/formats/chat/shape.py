"""Messages in an order that the model's chat template shows (`workers/engine/template_rules.py`).

What callers sent stays in its place, so a longer conversation still begins like a shorter one, for the prefix cache:

* An instruction that the template does not take there is a user's message that says so.
* A conversation that must begin with a user's message, and does not, begins with `GO_ON`.
* Messages of users in a row are joined.
* Between a tool's result and a user's message, the model says `NOTED`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workers.engine.base import Message
from workers.engine.template_rules import ANY_ORDER, TemplateRules

GO_ON = "Continue."
NOTED = "Noted."
INSTRUCTION_HEAD = "Instructions of the developer:\n\n"


def shaped(messages: Sequence[Message], rules: TemplateRules) -> list[Message]:
    """The messages in an order that a template with these rules takes."""
    if rules == ANY_ORDER or not messages:
        return list(messages)
    made: list[Message] = []
    for index, message in enumerate(messages):
        _add(made, _instruction(message, index, rules), rules)
    if not rules.no_user_first and made[-1]["role"] == "system" and len(made) == 1:
        made.append({"role": "user", "content": GO_ON})
    return made


def _instruction(message: Message, index: int, rules: TemplateRules) -> Message:
    # A template that counts users and assistants in turns would count the users on both sides of it.
    is_taken = rules.later_system and rules.users_in_a_row if index else rules.system
    if message["role"] != "system" or is_taken:
        return message
    return {"role": "user", "content": _joined(INSTRUCTION_HEAD, message["content"], "")}


def _add(made: list[Message], message: Message, rules: TemplateRules) -> None:
    before = made[-1]["role"] if made else None
    if message["role"] != "user":
        if message["role"] != "system" and before in (None, "system") and not rules.no_user_first:
            made.append({"role": "user", "content": GO_ON})
        made.append(message)
    elif before == "user" and not rules.users_in_a_row:
        made[-1] = {**made[-1], "content": _joined(made[-1]["content"], message["content"])}
    else:
        if before == "tool" and not rules.user_after_tool:
            made.append({"role": "assistant", "content": NOTED})
        made.append(message)


def _joined(first: Any, second: Any, joint: str = "\n\n") -> Any:
    """Two contents as one; each is a text, or a list of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{joint}{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
