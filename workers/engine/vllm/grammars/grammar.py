"""Grammars that enforce the form of an answer, as xgrammar's structural tags.

What callers send is read by the probe alone (`workers.engine.grammar_probe`), before a tag is made of it. The probe
also makes the JSON schemas of a tag into grammars of ours (`workers.engine.schemas`), which hold all of a schema.

Tags of tool calls are in `calls.py`, those of harmony in `harmony.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from app.heavy import off_loop
from app.protocol.types import Json
from app.sizes import json_size
from workers.engine.base import InvalidSampling
from workers.engine.grammar_probe import GrammarProbe, Source, Verdict
from workers.engine.output_format import OutputSpec, Structured, Tool
from workers.engine.vllm.errors import error_message

MAX_SCHEMA_CHARS = 2**18
MAX_GRAMMAR_CHARS = 2**16
"""Lengths up to which schemas and grammars are worth trying."""
CUSTOM_TITLE = "longhaul.custom "
"""A custom tool's schema has this `title`, followed by the tool's name."""

_TEXT = ""
"""Stands for `text.format`, among the names of tools."""
_NO_SCHEMA = "this JSON schema cannot be made a grammar: "
_INPUT_HEAD = r'\{ ?"input" ?: ?"'


@dataclass(frozen=True, slots=True)
class Parts:
    """What grammars can be made of in a request, by the names of its tools."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    """The grammars (EBNF) of the inputs of custom tools, inside a JSON string."""
    enforceable: frozenset[str] = frozenset()
    """The tools with parameters that a grammar can hold a call to."""
    answer: Json | None = None
    """The schema of an answer without what no grammar can hold; None: all of it is held, or there is none."""


async def parts_of(spec: OutputSpec, size: int, probe: GrammarProbe, *, every_tool: bool) -> Parts:
    """Tries the schemas and definitions of a request of `size` characters. `every_tool`: calls are enforced, so those
    of all tools.

    Of a text format that is not strict, only what can be held is. Raises InvalidSampling, which names the field, for
    any other text format, strict parameters or a definition that cannot be enforced, and for whatever takes too much
    to compile.
    """
    if not (_has_schema(spec) or any(tool.strict or every_tool for tool in spec.tools)):
        return Parts()
    sources = await off_loop(partial(_sources, spec, every_tool), size, slow=True)
    verdicts = dict(zip(sources, await probe.compile(list(sources.values())), strict=True))
    strict = {tool.name for tool in spec.tools if tool.strict} | {_TEXT}
    for name in strict & verdicts.keys():
        _check(sources[name], verdicts[name])
    fine = {name: verdict for name, verdict in verdicts.items() if not verdict.refusal}
    inputs = {name: verdict.ebnf for name, verdict in fine.items() if sources[name].kind in ("lark", "regex")}
    loose = _TEXT in sources and sources[_TEXT].kind == "loose"
    return Parts(inputs, frozenset(fine) - {_TEXT}, json.loads(fine[_TEXT].ebnf) if loose else None)


def size_of(spec: OutputSpec) -> int:
    """About the characters of a spec; of a large one, any large number."""
    tools = [(tool.name, tool.description, tool.parameters, tool.grammar) for tool in spec.tools]
    return json_size([spec.text_format, spec.template_args, *tools])


async def tried(made: Structured, probe: GrammarProbe) -> Structured:
    """The grammar that the engine gets. Raises InvalidSampling if none can be made of the tag, or one that takes too
    much."""
    [verdict] = await probe.compile([Source("tag", made.tag, made.request_field)])
    if verdict.refusal:
        raise InvalidSampling(f"{made.request_field}: it cannot be made a grammar: {_reason(verdict.refusal)}")
    return replace(made, tag=verdict.ebnf, cost=verdict.cost)


def _has_schema(spec: OutputSpec) -> bool:
    return spec.text_format["type"] == "json_schema" and not spec.forced


def _sources(spec: OutputSpec, every_tool: bool) -> dict[str, Source]:
    """By the tools' names; `_TEXT` for the text. Raises InvalidSampling."""
    found: dict[str, Source] = {}
    for tool in spec.tools:
        if tool.grammar is not None:
            found[tool.name] = _definition(tool)
        elif tool.parameters is not None and (tool.strict or every_tool):
            try:
                found[tool.name] = _schema(tool.parameters, f"{tool.field}.parameters")
            except InvalidSampling:
                if tool.strict:
                    raise
    if _has_schema(spec):
        made = _schema(spec.text_format["schema"], "text.format.schema")
        found[_TEXT] = made if spec.text_format.get("strict", True) else replace(made, kind="loose")
    return found


def _definition(tool: Tool) -> Source:
    assert tool.grammar is not None
    syntax, definition = tool.grammar
    field = f"{tool.field}.format.definition"
    if len(definition) > MAX_GRAMMAR_CHARS:
        reason = f"expected at most {MAX_GRAMMAR_CHARS} characters, but got {len(definition)}"
        raise InvalidSampling(f"{field}: {reason}")
    return Source(syntax, definition, field)


def _schema(schema: Mapping[str, Any], field: str) -> Source:
    """Raises InvalidSampling for a schema that is not worth trying."""
    try:
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA_CHARS:
            raise ValueError(f"it may have {MAX_SCHEMA_CHARS} characters, but it has {len(text)}")
    except Exception as error:  # also a RecursionError
        raise InvalidSampling(f"{field}: {_NO_SCHEMA}{error_message(error)}") from None
    return Source("schema", text, field)


def _check(source: Source, verdict: Verdict) -> None:
    """Raises InvalidSampling."""
    if verdict.refusal:
        prefix = _NO_SCHEMA if source.kind in ("schema", "loose") else ""
        raise InvalidSampling(f"{source.field}: {prefix}{_reason(verdict.refusal)}")


def text_format(spec: Mapping[str, Any], parts: Parts) -> Json | None:
    """The format for `text.format` (openai's ResponseFormatTextConfig); None for plain text."""
    if spec["type"] == "json_object":
        return json_format({"type": "object"})
    if spec["type"] == "json_schema":
        return json_format(spec["schema"] if parts.answer is None else parts.answer)
    return None


def tag_of(format_: Json) -> str:
    """The structural tag of a format, as JSON."""
    return json.dumps({"type": "structural_tag", "format": format_})


def json_format(schema: Mapping[str, Any]) -> Json:
    return {"type": "json_schema", "json_schema": dict(schema)}


def arguments_format(tool: Tool, parts: Parts) -> Json:
    """The format for the JSON of a call's arguments."""
    if tool.grammar is not None:
        return _custom_format(tool, parts)
    return json_format(tool.parameters or {"type": "object"})


def _custom_format(tool: Tool, parts: Parts) -> Json:
    head = {"type": "regex", "pattern": _INPUT_HEAD}
    grammar = {"type": "grammar", "grammar": parts.inputs[tool.name]}
    return {"type": "sequence", "elements": [head, grammar, {"type": "const_string", "value": '"}'}]}


def _reason(message: str) -> str:
    """The message without xgrammar's prefix: a time and a line of its source."""
    return message.split("] ", 1)[-1].split(": ", 1)[-1] if message.startswith("[") else message
