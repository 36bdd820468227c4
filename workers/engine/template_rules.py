"""Which orders of messages a model's chat template shows whole, found by rendering small conversations.

Templates are programs, and many are strict: they raise an error for an instruction behind the first message, for a
prompt without a user's message, or for two of one role in a row. Others leave out what they do not expect. Callers send
any order, as OpenAI takes it, so `formats/chat/shape.py` shapes messages by these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Shown = Callable[[Sequence[Mapping[str, Any]]], str]
"""Renders messages to the prompt's text; raises what the template raises."""

_WORDS = ("alpha", "bravo", "charlie", "delta")
_ID = "call00000"
_CALL = {"id": _ID, "type": "function", "function": {"name": "f", "arguments": "{}"}}


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """What a chat template shows. True: it takes the order; False: it refuses it, or leaves a message out."""

    system: bool = True
    """A system message at the head."""
    later_system: bool = True
    """A system message behind others."""
    no_user_first: bool = True
    """A conversation without a user's message, or with another role before the first one."""
    users_in_a_row: bool = True
    user_after_tool: bool = True
    """A user's message directly behind the result of a tool."""


ANY_ORDER = TemplateRules()


def rules_of(shown: Shown) -> TemplateRules:
    """The rules of the template behind `shown`. One that cannot show a plain message has none: its errors are its own.

    An order counts as refused only if the template shows the same conversation without what is in question.
    """

    def takes(*roles: str) -> bool:
        messages = [_message(role, word) for role, word in zip(roles, _WORDS, strict=False)]
        try:
            text = shown(messages)
        except Exception:  # a template is a program
            return False
        return all(message["content"] in text for message in messages)

    def is_taken(roles: tuple[str, ...], *, like: tuple[str, ...]) -> bool:
        return takes(*roles) or not takes(*like)

    if not takes("user"):
        return ANY_ORDER
    return TemplateRules(
        system=is_taken(("system", "user"), like=("user",)),
        later_system=is_taken(("user", "assistant", "system", "user"), like=("user", "assistant", "user"))
        and is_taken(("user", "system"), like=("user",)),
        no_user_first=is_taken(("assistant", "user"), like=("user", "assistant", "user"))
        and is_taken(("call", "tool"), like=("user", "call", "tool"))
        and is_taken(("system",), like=("system", "user")),
        users_in_a_row=is_taken(("user", "user"), like=("user",)),
        user_after_tool=is_taken(("user", "call", "tool", "user"), like=("user", "call", "tool")),
    )


def _message(role: str, word: str) -> dict[str, Any]:
    if role == "call":
        return {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    return {"role": role, "content": word, **({"tool_call_id": _ID} if role == "tool" else {})}
