"""The grammar of an answer that may have calls, as xgrammar's structural tag.

vLLM builds the tags of calls in the model's own form, for most of its parsers. A parser without one can still be held
to required calls: as a JSON list, which vLLM reads for all models alike. This module adds to vLLM's tags:

* If a call's JSON begins with blanks (`{"name": "f", "arguments": `), it may also be written without them.
* No string of a call has one of the marks of calls, at which the parser would end the call.
* The input of a custom tool follows the tool's grammar, if it has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.protocol.types import Json
from workers.engine.base import InvalidSampling
from workers.engine.output_format import OutputSpec, Tool, ToolChoice
from workers.engine.schemas.tags import nodes_in
from workers.engine.vllm.grammars import grammar
from workers.engine.vllm.grammars.grammar import CUSTOM_TITLE, Parts

_NOT_HELD = "this model's calls cannot be held to a grammar"
_MARK = re.compile(r"</?(?:\uff5cDSML\uff5c )?[^<>\s=]+[>=]?")
_TEXT: Json = {"type": "sequence", "elements": [{"type": "regex", "pattern": "[^{<]"}, {"type": "any_text"}]}
"""Text that does not begin as JSON or a mark."""
_STYLE_MARKS = {
    "qwen_xml": ["<parameter=", "</parameter>"],
    "minimax_xml": ["<parameter", "</parameter>"],
    "deepseek_xml": ["<\uff5cDSML\uff5cparameter", "</\uff5cDSML\uff5cparameter>"],
    "deepseek_v4_1_xml": ["<\uff5cDSML\uff5c parameter", "</\uff5cDSML\uff5c parameter>"],
    "glm_xml": ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
}
"""Marks of arguments, by the style of a tag's schema; the tag does not show them."""


def is_enforced(spec: OutputSpec) -> bool:
    """Whether a grammar shall enforce the calls."""
    return (
        spec.forced
        or (spec.choice is ToolChoice.AUTO and spec.text_format["type"] != "text")
        or spec.closed
        or any(tool.strict for tool in spec.tools)
    )


def answer_format(native: Json | None, spec: OutputSpec, parts: Parts, *, can_list: bool) -> tuple[Json | None, bool]:
    """The format of the whole answer, and whether its calls are a JSON list; None: nothing is enforced.

    `native`: vLLM's for the calls, if it has one. `can_list`: vLLM can read a list. Raises InvalidSampling, which names
    the field, for what cannot be enforced.
    """
    text = None if spec.forced else grammar.text_format(spec.text_format, parts)
    if spec.choice is ToolChoice.NONE:
        return text, False
    if native is not None:
        _check_strict(native, spec)
        if _is_json(native):
            native = _from_start(native)
            if text:
                _refuse_unheld(spec)
        whole = {"type": "or", "elements": [native, text]} if text else native
        return _Completion(spec, parts, native).complete(whole), False
    if not spec.forced:
        _refuse_unheld(spec)
        return None, False
    if not can_list:
        raise InvalidSampling(f"tool_choice: {_NOT_HELD}; use auto or none")
    return _list(spec, parts), True


def _check_strict(native: Json, spec: OutputSpec) -> None:
    """Raises InvalidSampling if the tag does not hold a strict tool's arguments to all that they must match."""
    nodes = [node for node in nodes_in(native) if node.get("type") == "json_schema"]
    for tool in spec.tools:
        if tool.grammar is not None and not any(node["style"] == "json" and _is_of(tool, node) for node in nodes):
            raise InvalidSampling(f"{tool.field}.format: {_NOT_HELD}")
        if not tool.strict or tool.grammar is not None or not tool.parameters:
            continue
        if not any(node["json_schema"] == tool.parameters for node in nodes):
            raise InvalidSampling(f"{tool.field}.strict: {_NOT_HELD} of their parameters; leave it out")


def _is_of(tool: Tool, node: Json) -> bool:
    """Whether this schema's node stands for the grammar of the custom tool."""
    schema = node["json_schema"]
    return tool.grammar is not None and isinstance(schema, dict) and schema.get("title") == CUSTOM_TITLE + tool.name


def _refuse_unheld(spec: OutputSpec) -> None:
    """Raises InvalidSampling for what only a grammar of calls could hold. A call that is not allowed needs none: it
    becomes text."""
    if spec.text_format["type"] != "text":
        raise InvalidSampling(f"text.format: {_NOT_HELD} beside a text; leave out tools, or set tool_choice to none")
    for tool in spec.tools:
        if tool.strict:
            name = "strict" if tool.grammar is None else "format"
            raise InvalidSampling(f"{tool.field}.{name}: {_NOT_HELD} unless tool_choice requires a call; leave it out")


def _is_json(native: Json) -> bool:
    """Whether a call is JSON without a mark (Llama's): its parser reads calls from the first character on or not at
    all, and takes any JSON for one."""
    return any(tag["begin"].startswith("{") for tag in native.get("tags", [native]) if "begin" in tag)


def _from_start(native: Json) -> Json:
    """The same calls without text before, between or after them; or text, if the model may choose."""
    if "tags" not in native:
        return native
    calls = {**native, "type": "tags_with_separator", "separator": "; ", "at_least_one": True}
    chosen = not native["at_least_one"]
    for key in ("triggers", "excludes"):
        del calls[key]
    return {"type": "or", "elements": [calls, _TEXT, {"type": "const_string", "value": ""}]} if chosen else calls


def _list(spec: OutputSpec, parts: Parts) -> Json:
    """The calls as a JSON list, of one call if only one may be made."""
    tags = [
        {
            "type": "tag",
            "begin": f'{{"name": "{tool.name}", "parameters": ',
            "content": _arguments(tool, parts),
            "end": "}",
        }
        for tool in spec.tools
    ]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": ", ", "at_least_one": True}
    calls = _with_tight({**calls, "stop_after_first": spec.single})
    return {"type": "tag", "begin": "[", "content": calls, "end": "]"}


def _arguments(tool: Tool, parts: Parts) -> Json:
    held = tool.strict or tool.name in parts.enforceable
    return grammar.arguments_format(tool, parts) if held else grammar.json_format({"type": "object"})


class _Completion:
    """Completes vLLM's `native` tag."""

    def __init__(self, spec: OutputSpec, parts: Parts, native: Json) -> None:
        self._spec = spec
        self._parts = parts
        texts = [text for node in nodes_in(native) for text in texts_of(node)]
        self._marks = sorted({mark for text in texts for mark in _MARK.findall(text)})

    def complete(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.complete(each) for each in node]
        if not isinstance(node, dict):
            return node
        if node.get("type") == "json_schema":
            return self._schema(node)
        made = {key: self.complete(value) for key, value in node.items()}
        if "triggers" in made:  # the first mark alone, so that all others can be kept out of the text
            made["triggers"] = [mark[0] if (mark := _MARK.match(each)) else each for each in made["triggers"]]
        if isinstance(made.get("excludes"), list):
            foreign = set(self._marks).difference(made.get("triggers", ()))
            made["excludes"] = sorted(foreign.union(made["excludes"]))
        return _with_tight(made) if isinstance(made.get("tags"), list) else made

    def _schema(self, node: Json) -> Json:
        schema, style = node["json_schema"], node.get("style", "json")
        if (tool := next((each for each in self._spec.tools if _is_of(each, node)), None)) is not None:
            return grammar.arguments_format(tool, self._parts)
        if schema is True and style == "json":
            schema = {"type": "object"}
        return {**node, "json_schema": schema, "excludes": [*self._marks, *_STYLE_MARKS.get(style, ())]}


def texts_of(node: Json) -> Iterator[str]:
    """The literal texts of a node."""
    for key in ("begin", "end", "value"):
        found = node.get(key)
        yield from [found] if isinstance(found, str) else found if isinstance(found, list) else []


def _with_tight(node: Json) -> Json:
    """The node's tags, and each once more without the blanks in its JSON, if it has some."""
    tags = node["tags"]
    made = {**node, "tags": tags + [tight for tag in tags if (tight := _without_blanks(tag)) is not None]}
    if "triggers" in node:  # a trigger must be the beginning of both
        made["triggers"] = [_tight(trigger).rstrip() for trigger in node["triggers"]]
    return made


def _without_blanks(tag: Json) -> Json | None:
    """The tag for the same call without blanks in its JSON; None if it has none."""
    begin = tag.get("begin")
    if not isinstance(begin, str) or (tight := _tight(begin)) == begin:
        return None
    return {**tag, "begin": tight}


def _tight(begin: str) -> str:
    return begin.replace('": ', '":').replace(', "', ',"')
