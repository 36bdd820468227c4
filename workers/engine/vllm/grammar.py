"""Grammars that hold an answer to a form, as xgrammar's structural tags, checked before anything runs.

vLLM builds the tags of tool calls by the model's own format; three things are added here. White space in
JSON is bounded: a small model could otherwise write blanks for ever. Where a call's JSON begins with
blanks (`{"name": "f", "arguments": `), it may be written without as well. And the input of a custom tool
that has a grammar is held to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import xgrammar
from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features
from vllm.v1.structured_output.utils import compile_regex_with_timeout

from workers.engine.base import InvalidSampling
from workers.engine.json_grammar import in_json_string
from workers.engine.output_format import Json, Tool
from workers.engine.vllm.errors import one_line

MOST_BLANKS = 8
"""Characters of white space between two pieces of JSON: enough for some indentation."""
CUSTOM = "longhaul.custom "
"""Begins the `title` of a custom tool's schema; its name follows."""

_INPUT_HEAD = r'\{ ?"input" ?: ?"'


def text_format(spec: Mapping[str, Any]) -> Json | None:
    """A format for `text.format` (openai's ResponseFormatTextConfig). Raises InvalidSampling."""
    if spec["type"] == "json_object":
        return json_format({"type": "object"})
    if spec["type"] == "json_schema":
        check_schema(spec["schema"], "text.format.schema")
        return json_format(spec["schema"])
    return None


def tag_of(format_: Json) -> str:
    """The structural tag of a format, as the engine takes it."""
    return json.dumps({"type": "structural_tag", "format": format_})


def tool_tag(tag: str, tools: Iterable[Tool]) -> str:
    """vLLM's structural tag of tool calls, with what it lacks. Raises InvalidSampling."""
    grammars = {tool.name: tool for tool in tools if tool.grammar is not None}
    finished = json.dumps(_finished(json.loads(tag), grammars))
    try:
        xgrammar.Grammar.from_structural_tag(finished)
    except Exception as error:  # its own C++ errors
        raise InvalidSampling(f"tools: they cannot be made a grammar: {one_line(error)}") from None
    return finished


def check_tool(tool: Tool) -> None:
    """Raises InvalidSampling where its parameters or its grammar cannot be held to."""
    if tool.grammar is not None:
        _input_grammar(tool)
    elif tool.strict and tool.parameters is not None:
        check_schema(tool.parameters, f"{tool.field}.parameters")


def can_hold(tool: Tool) -> bool:
    """Whether a call's arguments can be held to the tool's parameters."""
    try:
        check_schema(tool.parameters or {}, "")
    except InvalidSampling:
        return False
    return tool.parameters is not None


def check_schema(schema: Mapping[str, Any], field: str) -> None:
    """Raises InvalidSampling where the engine cannot hold an answer to this JSON schema."""
    try:
        if has_xgrammar_unsupported_json_features(dict(schema)):
            raise ValueError("it has a feature that cannot be enforced")
        xgrammar.Grammar.from_json_schema(json.dumps(schema))
    except Exception as error:  # its own C++ errors, and a RecursionError
        raise InvalidSampling(f"{field}: this JSON schema cannot be made a grammar: {_reason(error)}") from None


def json_format(schema: Mapping[str, Any]) -> Json:
    return {"type": "json_schema", "json_schema": dict(schema), "max_whitespace_cnt": MOST_BLANKS}


def arguments_format(tool: Tool) -> Json:
    """A format for the JSON of a call's arguments. Raises InvalidSampling."""
    if tool.grammar is not None:
        return _custom_format(tool)
    return json_format(tool.parameters or {"type": "object"})


def _finished(node: Any, grammars: Mapping[str, Tool]) -> Any:
    if isinstance(node, list):
        return [_finished(each, grammars) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "json_schema":
        return _finished_json(node, grammars)
    made = {key: _finished(value, grammars) for key, value in node.items()}
    if isinstance(made.get("tags"), list):
        made["tags"] += [tight for tag in made["tags"] if (tight := _tight(tag)) is not None]
    return made


def _finished_json(node: Json, grammars: Mapping[str, Tool]) -> Json:
    schema = node["json_schema"]
    title = schema.get("title", "") if isinstance(schema, dict) else ""
    tool = grammars.get(title.removeprefix(CUSTOM)) if isinstance(title, str) and title.startswith(CUSTOM) else None
    if tool is None:
        return {**node, "max_whitespace_cnt": node.get("max_whitespace_cnt") or MOST_BLANKS}
    if node.get("style", "json") != "json":
        raise InvalidSampling(f"{tool.field}.format: this model's tool calls cannot be held to a grammar")
    return _custom_format(tool)


def _custom_format(tool: Tool) -> Json:
    head = {"type": "regex", "pattern": _INPUT_HEAD}
    grammar = {"type": "grammar", "grammar": _input_grammar(tool)}
    return {"type": "sequence", "elements": [head, grammar, {"type": "const_string", "value": '"}'}]}


def _tight(tag: Json) -> Json | None:
    """The same call without blanks in its JSON, where it has some."""
    begin = tag.get("begin")
    if not isinstance(begin, str):
        return None
    tight = begin.replace('": ', '":').replace(', "', ',"')
    return {**tag, "begin": tight} if tight != begin else None


def _input_grammar(tool: Tool) -> str:
    assert tool.grammar is not None
    syntax, definition = tool.grammar
    try:
        if syntax == "regex":
            grammar = compile_regex_with_timeout(xgrammar.Grammar.from_regex, definition)
        else:
            grammar = xgrammar.Grammar.from_lark(definition)
        return in_json_string(str(grammar))
    except Exception as error:  # its own C++ errors
        raise InvalidSampling(f"{tool.field}.format.definition: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Without the time and place in its source that xgrammar puts first."""
    said = one_line(error)
    return said.split("] ", 1)[-1].split(": ", 1)[-1] if said.startswith("[") else said
