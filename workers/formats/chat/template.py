"""Arguments of the chat template.

In this order, later ones win: the model's own (`chat_template_args` in models.toml), what the request's
fields say, and what the request sets as `chat_template_kwargs`. A template takes those that it knows:

    reasoning.effort   reasoning_effort = effort; enable_thinking and thinking = whether it is to think:
                       not with "none" and "minimal", and with any other effort
    text.verbosity     verbosity
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.engine.base import InvalidSampling

_NO_THOUGHT = frozenset({"none", "minimal"})
_OURS = ("add_generation_prompt", "chat_template", "continue_final_message", "messages", "tokenize", "tools")
"""What a request must not set: who sets the template runs a program here."""


def template_args_of(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidSampling where the request sets what it may not."""
    args = dict(defaults)
    effort = (request.get("reasoning") or {}).get("effort")
    if effort is not None:
        thinks = effort not in _NO_THOUGHT
        args |= {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}
    verbosity = request["text"].get("verbosity")
    if verbosity is not None:
        args["verbosity"] = verbosity
    own = request["extra"].get("chat_template_kwargs") or {}
    for name in _OURS:
        if name in own:
            raise InvalidSampling(f"chat_template_kwargs.{name} cannot be set")
    return args | own
