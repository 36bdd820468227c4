"""Arguments of the chat template.

Later ones win: the model's own (`chat_template_args` in models.toml), then what the request's fields ask for, then the
request's `chat_template_kwargs`. A template uses those that it knows:

    reasoning.effort   reasoning_effort = the effort; enable_thinking and thinking = false for "none" and "minimal",
                       true for any other effort
    reasoning.context  preserve_thinking = true and clear_thinking = false for "all_turns"
    text.verbosity     verbosity
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.protocol.requests.bodies.vllm_params import RESERVED
from workers.engine.base import InvalidSampling
from workers.engine.template_efforts import effort_args
from workers.formats.reasoning import ALL_TURNS_ARGS, shows_all_turns


def template_args_of(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidSampling if the request sets a reserved argument."""
    args = dict(defaults)
    effort = (request.get("reasoning") or {}).get("effort")
    if effort is not None:
        args |= effort_args(effort)
    if shows_all_turns(request):
        args |= ALL_TURNS_ARGS
    verbosity = request["text"].get("verbosity")
    if verbosity is not None:
        args["verbosity"] = verbosity
    own = request["extra"].get("chat_template_kwargs") or {}
    for name in RESERVED:
        if name in own:
            raise InvalidSampling(f"chat_template_kwargs.{name} cannot be set")
    return args | own
