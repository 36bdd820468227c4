"""The body of a request to vLLM's token route."""

from __future__ import annotations

from typing import Any

import msgspec

from workers.engine.vllm.checked_request import CheckedRequest

_MAX_LOGPROBS = 20
"""vLLM's default for `--max-logprobs`."""
_LEFT_OUT = ("output_kind", "structured_outputs")


def body_of(request_id: str, request: CheckedRequest, model: str, priority: int) -> dict[str, Any]:
    """As JSON has it. `model`: its name, or an adapter's, at the server."""
    made = request.input
    body = {
        "request_id": request_id,
        "model": model,
        "token_ids": made["prompt_token_ids"],
        "sampling_params": _params(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": priority,
        **request.reasoning,
    }
    return body | {name: made[name] for name in ("cache_salt", "content_parts") if name in made}


def _params(request: CheckedRequest) -> dict[str, Any]:
    params = request.params
    found: dict[str, Any] = msgspec.to_builtins(params)
    found = {name: value for name, value in found.items() if name[0] != "_" and name not in _LEFT_OUT}
    found["max_tokens"] = params.max_tokens  # vLLM leaves out what is its default: the route has another one
    if params.structured_outputs is not None:
        found["structured_outputs"] = {"structural_tag": params.structured_outputs.structural_tag}
    if params.logprobs:
        # The route shows so many with the chosen token first, which may be none of the likeliest.
        found["logprobs"] = min(params.logprobs + 1, _MAX_LOGPROBS)
    return found
