"""Grammars that enforce the form of a harmony answer: structural tags over whole messages, headers included.

    ((thoughts | preamble | call) <|start|>assistant)*  (answer | call)

The request says which calls and answers may occur. A grammar is made only if something has to be enforced, because it
gives the sampler a state. vllm.parser.harmony, which inspired this, knows one message of analysis and one of
commentary.

* A grammar does not contain stop tokens (`<|return|>`, `<|call|>`): xgrammar lets them pass at its end.
* gpt-oss writes a call's header in two ways, and `json` with or without `<|constrain|>` before it: all are allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.protocol.types import Json
from workers.engine.output_format import OutputSpec, Structured, Tool, ToolChoice
from workers.engine.vllm.grammars import grammar
from workers.engine.vllm.grammars.grammar import Parts

_END = "<|end|>"
_NEXT = "<|start|>assistant"
_TEXT: Json = {"type": "any_text", "excludes": ["<|start|>", "<|channel|>"]}
"""Text that does not begin another message."""
_LAST = [_END, ""]
_JSON_KINDS = (" <|constrain|>json", " json")
_CODE_KINDS = (" code", " <|constrain|>code", "")
_ANALYSIS_TOOLS = ("python", "browser")
"""Tools that are called in the analysis channel, as gpt-oss was trained."""


def structured(spec: OutputSpec, parts: Parts) -> Structured | None:
    """The grammar for an answer; None if nothing has to be enforced. `spec` names its tools as calls name them."""
    content = grammar.text_format(spec.text_format, parts)
    if content is None and not _is_enforced(spec):
        return None
    return Structured(grammar.tag_of(_answer(spec, content, parts)), spec.grammar_field)


def _is_enforced(spec: OutputSpec) -> bool:
    if spec.forced:
        return True
    return spec.choice is ToolChoice.AUTO and (spec.closed or any(tool.strict for tool in spec.tools))


def _answer(spec: OutputSpec, content: Json | None, parts: Parts) -> Json:
    calls = [call for tool in spec.tools for call in _calls(tool, parts, strict=_is_held(spec, tool, parts))]
    between = [
        _tag("<|channel|>analysis<|message|>", _TEXT, _END),
        _tag("<|channel|>commentary<|message|>", _TEXT, _END),
    ]
    if not spec.single:
        between += [_tag(begin, text, _END) for begin, text in calls]
    last = [_tag(begin, text, _LAST) for begin, text in calls]
    if not spec.forced:
        last += _finals(content)
    before = {"type": "star", "content": _sequence(_either(between), {"type": "const_string", "value": _NEXT})}
    return _sequence(before, _either(last))


def _is_held(spec: OutputSpec, tool: Tool, parts: Parts) -> bool:
    """Whether the grammar holds the arguments of the tool's calls to its parameters: those of required calls too, if
    that is possible."""
    return tool.strict or (spec.forced and tool.name in parts.enforceable)


def _finals(content: Json | None) -> list[Json]:
    kinds = ("", *_JSON_KINDS)
    return [_tag(f"<|channel|>final{kind}<|message|>", content or _TEXT, _LAST) for kind in kinds]


def _calls(tool: Tool, parts: Parts, *, strict: bool) -> Iterable[tuple[str, Json]]:
    """Every way to begin a call of this tool, with the content that may follow."""
    in_analysis = tool.name.split(".")[0] in _ANALYSIS_TOOLS
    channels = ("analysis", "commentary") if in_analysis else ("commentary", "analysis")
    text = grammar.arguments_format(tool, parts) if strict else _TEXT
    for kind in _CODE_KINDS if in_analysis else _JSON_KINDS:
        for channel in channels:
            yield f" to={tool.name}<|channel|>{channel}{kind}<|message|>", text
            yield f"<|channel|>{channel} to={tool.name}{kind}<|message|>", text


def _tag(begin: str, content: Json, end: str | list[str]) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(*elements: Json) -> Json:
    return {"type": "sequence", "elements": list(elements)}


def _either(elements: list[Json]) -> Json:
    return {"type": "or", "elements": elements} if len(elements) > 1 else elements[0]
