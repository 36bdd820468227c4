"""What the fields of a request must be together, each being right by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.requests.tools import AllowedTools


def check_consistent(fields: Any, body: Mapping[str, Any]) -> None:
    """Raises InvalidRequest. `fields` is a `Prompt`, `body` what it was made from."""
    _check_context(fields, body)
    _check_choice(fields)
    _check_min_tokens(fields)


CONTEXTS = ("previous_response_id", "conversation", "previous_input_messages")
"""What a request may go on with: one of them."""


def _check_context(fields: Any, body: Mapping[str, Any]) -> None:
    found = [name for name in CONTEXTS if getattr(fields, name, None) is not None]
    if len(found) > 1:
        first, second, *_ = sorted(found, key=CONTEXTS.index)
        later = max(found, key=list(body).index)
        message = f"'{first}' and '{second}' cannot be used together."
        raise InvalidRequest(message, later, "mutually_exclusive_parameters")
    if fields.input is None and not found:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")


def _check_choice(fields: Any) -> None:
    """A choice must name tools that there are."""
    choice, tools = fields.tool_choice, fields.tools or ()
    if choice == "required" and not tools:
        raise InvalidRequest("'tool_choice' is 'required', but there are no 'tools'.", "tool_choice", "invalid_value")
    for where, chosen in _chosen(choice):
        if not any(chosen.matches(tool) for tool in tools):
            named = f"{where}.{chosen.key}"
            message = f"Invalid '{named}': there is no {chosen.described} in 'tools'."
            raise InvalidRequest(message, named, "invalid_value")


def _chosen(choice: Any) -> Iterable[tuple[str, Any]]:
    """What a choice names, each with its place."""
    if isinstance(choice, AllowedTools):
        yield from ((f"tool_choice.tools[{index}]", tool) for index, tool in enumerate(choice.tools))
    elif choice is not None and not isinstance(choice, str):
        yield "tool_choice", choice


def _check_min_tokens(fields: Any) -> None:
    limit, least = getattr(fields, "max_output_tokens", None), getattr(fields, "min_tokens", None)
    if limit is not None and least is not None and least > limit:
        message = f"Invalid 'min_tokens': expected at most 'max_output_tokens' ({limit}), but got {least} instead."
        raise InvalidRequest(message, "min_tokens", "integer_above_max_value")


def check_calls(items: list[dict[str, Any]]) -> None:
    """Every output of a tool follows its call. For stored items that continue nothing. Raises InvalidRequest."""
    open_calls: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        kind = item["type"]
        if kind in ("function_call", "custom_tool_call"):
            open_calls.add((f"{kind}_output", item["call_id"]))
        elif kind.endswith("_call_output") and (kind, item["call_id"]) not in open_calls:
            where = f"input[{index}].call_id"
            message = f"Invalid '{where}': there is no call with the id '{item['call_id']}' before its output."
            raise InvalidRequest(message, where, "invalid_value")
