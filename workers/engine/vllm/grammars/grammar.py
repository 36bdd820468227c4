"""Grammars that enforce the form of an answer, as xgrammar's structural tags, compiled once before anything runs.

vLLM builds the tags of tool calls in the model's own format. This module adds three things:

* White space in JSON is bounded: a small model could otherwise write blanks for ever.
* If a call's JSON begins with blanks (`{"name": "f", "arguments": `), it may also be written without them.
* The input of a custom tool follows the tool's grammar, if it has one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xgrammar

from app.protocol.types import Json
from workers.engine.base import InvalidSampling
from workers.engine.json_grammar import in_json_string
from workers.engine.output_format import OutputSpec, Tool
from workers.engine.vllm import compat
from workers.engine.vllm.errors import error_message

MAX_BLANKS = 8
"""Characters of white space between two tokens of JSON: enough for some indentation."""
MAX_SCHEMA_CHARS = 2**18
MAX_GRAMMAR_CHARS = 2**16
"""What is worth parsing, in the worker's process: a second of one core, at most a few."""
CUSTOM_TITLE = "longhaul.custom "
"""A custom tool's schema has this `title`, followed by the tool's name."""

_INPUT_HEAD = r'\{ ?"input" ?: ?"'


def text_format(spec: Mapping[str, Any]) -> Json | None:
    """The format for `text.format` (openai's ResponseFormatTextConfig); None for plain text. Raises InvalidSampling."""
    if spec["type"] == "json_object":
        return json_format({"type": "object"})
    if spec["type"] == "json_schema":
        check_schema(spec["schema"], "text.format.schema")
        return json_format(spec["schema"])
    return None


def tag_of(format_: Json) -> str:
    """The structural tag of a format, as JSON."""
    return json.dumps({"type": "structural_tag", "format": format_})


def tool_tag(tag: str, spec: OutputSpec) -> str:
    """vLLM's structural tag of tool calls, completed. Raises InvalidSampling."""
    grammars = {tool.name: tool for tool in spec.tools if tool.grammar is not None}
    completed = json.dumps(_completed(json.loads(tag), grammars))
    try:
        xgrammar.Grammar.from_structural_tag(completed)
    except Exception as error:  # xgrammar's C++ errors
        raise InvalidSampling(f"{spec.grammar_field}: it cannot be made a grammar: {error_message(error)}") from None
    return completed


def check_tool(tool: Tool) -> None:
    """Raises InvalidSampling if its parameters or its grammar cannot be enforced."""
    if tool.grammar is not None:
        _input_grammar(tool)
    elif tool.strict and tool.parameters is not None:
        check_schema(tool.parameters, f"{tool.field}.parameters")


def can_enforce(tool: Tool) -> bool:
    """Whether a grammar can hold a call's arguments to the tool's parameters."""
    try:
        check_schema(tool.parameters or {}, "")
    except InvalidSampling:
        return False
    return tool.parameters is not None


def check_schema(schema: Mapping[str, Any], field: str) -> None:
    """Raises InvalidSampling if no grammar can be made of this JSON schema."""
    try:
        if not compat.can_enforce(schema):
            raise ValueError("it has a feature that cannot be enforced")
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA_CHARS:
            raise ValueError(f"it may have {MAX_SCHEMA_CHARS} characters, but it has {len(text)}")
        xgrammar.Grammar.from_json_schema(text)
    except Exception as error:  # xgrammar's C++ errors, and a RecursionError
        raise InvalidSampling(f"{field}: this JSON schema cannot be made a grammar: {_reason(error)}") from None


def json_format(schema: Mapping[str, Any]) -> Json:
    return {"type": "json_schema", "json_schema": dict(schema), "max_whitespace_cnt": MAX_BLANKS}


def arguments_format(tool: Tool) -> Json:
    """The format for the JSON of a call's arguments. Raises InvalidSampling."""
    if tool.grammar is not None:
        return _custom_format(tool)
    return json_format(tool.parameters or {"type": "object"})


def _completed(node: Any, grammars: Mapping[str, Tool]) -> Any:
    if isinstance(node, list):
        return [_completed(each, grammars) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "json_schema":
        return _completed_json(node, grammars)
    made = {key: _completed(value, grammars) for key, value in node.items()}
    if isinstance(made.get("tags"), list):
        made["tags"] += [tight for tag in made["tags"] if (tight := _without_blanks(tag)) is not None]
    return made


def _completed_json(node: Json, grammars: Mapping[str, Tool]) -> Json:
    schema = node["json_schema"]
    title = schema.get("title", "") if isinstance(schema, dict) else ""
    tool = (
        grammars.get(title.removeprefix(CUSTOM_TITLE))
        if isinstance(title, str) and title.startswith(CUSTOM_TITLE)
        else None
    )
    if tool is None:
        return {**node, "max_whitespace_cnt": node.get("max_whitespace_cnt") or MAX_BLANKS}
    if node.get("style", "json") != "json":
        raise InvalidSampling(f"{tool.field}.format: this model's tool calls cannot be held to a grammar")
    return _custom_format(tool)


def _custom_format(tool: Tool) -> Json:
    head = {"type": "regex", "pattern": _INPUT_HEAD}
    grammar = {"type": "grammar", "grammar": _input_grammar(tool)}
    return {"type": "sequence", "elements": [head, grammar, {"type": "const_string", "value": '"}'}]}


def _without_blanks(tag: Json) -> Json | None:
    """The tag for the same call without blanks in its JSON; None if it has none."""
    begin = tag.get("begin")
    if not isinstance(begin, str):
        return None
    tight = begin.replace('": ', '":').replace(', "', ',"')
    return {**tag, "begin": tight} if tight != begin else None


def _input_grammar(tool: Tool) -> str:
    assert tool.grammar is not None
    syntax, definition = tool.grammar
    if len(definition) > MAX_GRAMMAR_CHARS:
        reason = f"expected at most {MAX_GRAMMAR_CHARS} characters, but got {len(definition)}"
        raise InvalidSampling(f"{tool.field}.format.definition: {reason}")
    try:
        compiled = compat.regex_grammar if syntax == "regex" else xgrammar.Grammar.from_lark
        return in_json_string(str(compiled(definition)))
    except Exception as error:  # xgrammar's C++ errors
        raise InvalidSampling(f"{tool.field}.format.definition: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """The message without xgrammar's prefix: a time and a line of its source."""
    message = error_message(error)
    return message.split("] ", 1)[-1].split(": ", 1)[-1] if message.startswith("[") else message
