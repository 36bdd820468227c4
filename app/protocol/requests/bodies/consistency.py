"""Checks of fields against each other, after each has been checked by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.item_types import CLIENT_CALLS, CLIENT_OUTPUTS, OUTPUT_OF, SERVER
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.items.any_item import CompactionTrigger
from app.protocol.requests.items.tools import AdditionalTools
from app.protocol.requests.tools.any_tool import NamespaceTool, ToolSearchTool
from app.protocol.requests.tools.choice import AllowedTools
from app.protocol.text import shortened


def check_consistent(fields: CreateResponse, body: Mapping[str, Any]) -> None:
    """Raises InvalidRequest about fields that contradict each other. `fields` is the checked form of `body`."""
    _check_context(fields, body)
    _check_trigger(fields)
    tools = [*fields.kept_tools, *fields.loaded_tools]
    _check_choice(fields, tools)
    _check_deferred(fields, tools)
    _check_min_tokens(fields)
    _check_effort(fields)
    _check_summary(fields)
    _check_window(fields)
    _check_obfuscation(fields)


CONTEXTS = ("previous_response_id", "conversation", "previous_input_messages")
"""What a request may continue: at most one of them."""


def _check_context(fields: CreateResponse, body: Mapping[str, Any]) -> None:
    found = [name for name in CONTEXTS if getattr(fields, name) is not None]
    if len(found) > 1:
        first, second, *_ = sorted(found, key=CONTEXTS.index)
        later = max(found, key=list(body).index)
        message = f"'{first}' and '{second}' cannot be used together."
        raise InvalidRequest(message, later, "mutually_exclusive_parameters")
    if not found:
        check_has_input(fields.input)


def check_has_input(sent: str | Sequence[Any] | None) -> None:
    """Raises InvalidRequest unless the request has an item; an empty string is a message without text."""
    if sent is None:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    if sent == []:
        raise InvalidRequest("Invalid 'input': empty array.", "input", "empty_array")


def _check_trigger(fields: CreateResponse) -> None:
    """A trigger of a compaction ends an input, and something is there to be compacted."""
    if not isinstance(items := fields.input, list):
        return
    for index, item in enumerate(items[:-1]):
        if isinstance(item, CompactionTrigger):
            message = f"Invalid 'input[{index}]': a 'compaction_trigger' must be the last item of 'input'."
            raise InvalidRequest(message, f"input[{index}]", "invalid_value")
    if fields.compacts and len(items) == 1 and all(getattr(fields, name) is None for name in CONTEXTS):
        message = "Invalid 'input[0]': there is nothing before the 'compaction_trigger' that could be compacted."
        raise InvalidRequest(message, "input[0]", "invalid_value")


def _check_choice(fields: CreateResponse, tools: Sequence[Any]) -> None:
    """A choice must name one of the request's `tools`: of the field, or of its items."""
    choice = fields.tool_choice
    if choice == "required" and not tools:
        reason = "this server leaves out all of the 'tools'" if fields.tools else "there are no 'tools'"
        raise InvalidRequest(f"'tool_choice' is 'required', but {reason}.", "tool_choice", "invalid_value")
    for where, chosen in _chosen(choice):
        if not any(chosen.matches(tool) for tool in tools):
            named = f"{where}.{chosen.key}"
            message = f"Invalid '{named}': there is no {chosen.described} in 'tools'."
            raise InvalidRequest(message, named, "invalid_value")


def _chosen(choice: Any) -> Iterable[tuple[str, Any]]:
    """Yields each tool that a choice names, with its path."""
    if isinstance(choice, AllowedTools):
        yield from ((f"tool_choice.tools[{index}]", tool) for index, tool in enumerate(choice.tools))
    elif choice is not None and not isinstance(choice, str):
        yield "tool_choice", choice


def _check_deferred(fields: CreateResponse, tools: Sequence[Any]) -> None:
    """Tools that load later need a tool search, which loads them. `tools`: of the field, and of items."""
    if not tools or any(isinstance(tool, ToolSearchTool) for tool in tools):
        return
    added = fields.input if isinstance(fields.input, list) else ()
    items = (
        (f"input[{index}].tools", item.tools) for index, item in enumerate(added) if isinstance(item, AdditionalTools)
    )
    for name, sent in (("tools", fields.tools or ()), *items):
        _refuse_deferred(name, sent)


def _refuse_deferred(name: str, tools: Sequence[Any]) -> None:
    for index, tool in enumerate(tools):
        nested = tool.tools if isinstance(tool, NamespaceTool) else [tool]
        for position, mine in enumerate(nested):
            if getattr(mine, "defer_loading", None):
                inner = f".tools[{position}]" if isinstance(tool, NamespaceTool) else ""
                where = f"{name}[{index}]{inner}.defer_loading"
                message = f"Invalid '{where}': tools that load later need a tool of type 'tool_search' in 'tools'."
                raise InvalidRequest(message, where, "unsupported_parameter")


def _check_min_tokens(fields: CreateResponse) -> None:
    limit, minimum = fields.max_output_tokens, fields.min_tokens
    if limit is not None and minimum is not None and minimum > limit:
        message = f"Invalid 'min_tokens': expected at most 'max_output_tokens' ({limit}), but got {minimum} instead."
        raise InvalidRequest(message, "min_tokens", "integer_above_max_value")


def _check_window(fields: CreateResponse) -> None:
    """A window needs a background response of the default tier, without a stream: so OpenAI documents it. A
    continuation needs a background response."""
    if fields.continuation_id is not None and not fields.background:
        where = "background_options.continuation_id"
        raise InvalidRequest(f"'{where}' needs 'background' to be true.", where, "invalid_value")
    window = fields.completion_window
    if window == "soonest":
        return
    needs = {
        "'background' to be true": bool(fields.background),
        "'stream' to be false": not fields.stream,
        "'service_tier' to be 'default'": fields.service_tier in (None, "auto", "default"),
    }
    if missing := next((need for need, is_met in needs.items() if not is_met), None):
        where = "background_options.completion_window"
        raise InvalidRequest(f"Invalid '{where}': '{window}' needs {missing}.", where, "invalid_value")


def _check_obfuscation(fields: CreateResponse) -> None:
    options = fields.stream_options
    if options is not None and options.include_obfuscation and not fields.stream:
        where = "stream_options.include_obfuscation"
        raise InvalidRequest(f"'{where}' needs 'stream' to be true.", where, "invalid_value")


def outputs_without_call(items: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the index of each output whose call is not before it, by `call_id`. `items` are stored items."""
    calls: set[tuple[str, str]] = set()
    found: dict[str, int] = {}
    for index, item in enumerate(items):
        item_type = item["type"]
        if item_type in CLIENT_CALLS and item.get("execution") != SERVER:
            calls.add((OUTPUT_OF[item_type], item["call_id"]))
        elif item_type in CLIENT_OUTPUTS and (call_id := item.get("call_id")) and (item_type, call_id) not in calls:
            found.setdefault(call_id, index)
    return found


def no_such_call(call_id: str, index: int) -> InvalidRequest:
    """Returns the error about the output at `index` of `input`: nothing before it called for it."""
    where = f"input[{index}].call_id"
    message = f"Invalid '{where}': there is no call with the id '{shortened(call_id)}' before its output."
    return InvalidRequest(message, where, "invalid_value")


def _check_effort(fields: CreateResponse) -> None:
    """`reasoning_effort` is another name of `reasoning.effort`: both must ask for the same."""
    nested = None if fields.reasoning is None else fields.reasoning.effort
    if fields.reasoning_effort is not None and nested not in (None, fields.reasoning_effort):
        message = "'reasoning_effort' and 'reasoning.effort' ask for different efforts: send 'reasoning.effort' alone."
        raise InvalidRequest(message, "reasoning_effort", "mutually_exclusive_parameters")


def _check_summary(fields: CreateResponse) -> None:
    """`generate_summary` is the old name of `summary`: both must ask for the same."""
    reasoning = fields.reasoning
    asked = set() if reasoning is None else {reasoning.summary, reasoning.generate_summary} - {None}
    if len(asked) > 1:
        message = "'reasoning.generate_summary' is the old name of 'reasoning.summary': send 'reasoning.summary' alone."
        raise InvalidRequest(message, "reasoning.generate_summary", "mutually_exclusive_parameters")
