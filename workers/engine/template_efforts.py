"""The effect of each `reasoning.effort` on a model's prompt, found by rendering small conversations.

Templates are programs: some know efforts, some a switch that turns reasoning on and off, and some nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, get_args

from app.protocol.requests.bodies.text_config import Effort
from app.protocol.types import Json

EFFORTS: tuple[str, ...] = get_args(Effort)
_WITHOUT_REASONING = frozenset({"none", "minimal"})
_PREFERRED = ("medium", "none", "high", "low", "xhigh", "minimal", "max")
"""Order of names: if several efforts are one to a template, the first of these names it."""

_ASKED = {"role": "user", "content": "Hello!"}
_ANSWERED = {"role": "assistant", "content": "Hi!", "reasoning_content": "A greeting.", "reasoning": "A greeting."}
_PARAMETERS = {"type": "object", "properties": {}}
_TOOL: Json = {"type": "function", "function": {"name": "f", "description": "", "parameters": _PARAMETERS}}
_CONVERSATIONS: Sequence[tuple[Sequence[Mapping[str, Any]], Sequence[Json]]] = (
    ([_ASKED], ()),
    ([{"role": "system", "content": "Be brief."}, _ASKED], (_TOOL,)),
    ([_ASKED, _ANSWERED, _ASKED], ()),
)

Shown = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any], Sequence[Json]], Hashable]
"""Renders messages, with arguments and tools, to a prompt; raises what the template raises."""


def effort_args(effort: str) -> dict[str, Any]:
    """The template's arguments for this effort, under the names that templates have."""
    return {"reasoning_effort": effort, **switches(effort not in _WITHOUT_REASONING)}


def switches(reasons: bool) -> dict[str, Any]:
    """The template's arguments that turn reasoning on or off, under the names that templates have."""
    # Hermes 4's keeps answers as they are only so: with "thinking" it cuts the thoughts that they do not have.
    return {"enable_thinking": reasons, "thinking": reasons, "keep_cots": True}


def applied_efforts(shown: Shown) -> dict[str, str | None] | None:
    """Returns what becomes of each effort with the template behind `shown`.

    Efforts that make the same prompts have one name, that of one of them. None: it changes nothing. An effort that the
    template refuses is not there. Without a plain prompt nothing is known: None.
    """
    plain = _prompts(shown, {})
    if not any(plain):
        return None
    made = {effort: _prompts(shown, effort_args(effort)) for effort in EFFORTS}
    known = [place for place, prompt in enumerate(plain) if prompt is not None]
    taken = {effort: prompts for effort, prompts in made.items() if all(prompts[each] is not None for each in known)}
    if set(taken.values()) <= {plain}:
        return dict.fromkeys(taken)
    return {
        effort: next(name for name in _PREFERRED if taken.get(name) == prompts) for effort, prompts in taken.items()
    }


def _prompts(shown: Shown, args: Mapping[str, Any]) -> tuple[Hashable | None, ...]:
    return tuple(_prompt(shown, messages, args, tools) for messages, tools in _CONVERSATIONS)


def _prompt(
    shown: Shown, messages: Sequence[Mapping[str, Any]], args: Mapping[str, Any], tools: Sequence[Json]
) -> Hashable | None:
    try:
        return shown(messages, args, tools)
    except Exception:  # a template is a program
        return None
