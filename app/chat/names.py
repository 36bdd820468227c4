"""The names of a chat request's fields, for errors about the fields of the response that it became."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.errors import ErrorObject

Rules = Sequence[tuple[re.Pattern[str], str]]
"""How paths within an item, or within a tool, are written in chat: the first pattern that matches a path counts."""


def _rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((re.compile(old), new) for old, new in pairs)


MESSAGE = _rules(
    (r"(\.content\[\d+\])\.(image_url)", r"\1.\2.url"),
    (r"(\.content\[\d+\])\.detail", r"\1.image_url.detail"),
    (r"(\.content\[\d+\])\.(file_id|file_data|filename)", r"\1.file.\2"),
)
REASONING = _rules((r".*", ""))
OF_CALLS = {
    kind: _rules((r"\.call_id", ".id"), (r"\.(name|arguments|input)", rf".{kind}.\1"))
    for kind in ("function", "custom")
}
OUTPUT = _rules(
    (r"\.call_id", ".tool_call_id"),
    (r"\.output(\[\d+\])\.image_url", r".content\1.image_url.url"),
    (r"\.output(\[\d+\])\.detail", r".content\1.image_url.detail"),
    (r"\.output(\[\d+\])\.(file_id|file_data|filename)", r".content\1.file.\2"),
    (r"\.output", ".content"),
)
_GRAMMAR = (r"\.format\.(syntax|definition)", r".custom.format.grammar.\1")
OF_TOOLS = {kind: _rules(_GRAMMAR, (r"\.(?!type\b)", f".{kind}.")) for kind in ("function", "custom")}
OMITTED = _rules()

_ELEMENT = re.compile(r"(input|tools|tool_choice\.tools)\[(\d+)\]")
_FIELDS = _rules(
    (r"input\b", "messages"),
    (r"include(\[\d+\])?", "logprobs"),
    (r"text\.verbosity\b", "verbosity"),
    (r"text\.format\.(?!type\b)", "response_format.json_schema."),
    (r"text\.format\b", "response_format"),
    (r"tool_choice\.(mode|tools)\b", r"tool_choice.allowed_tools.\1"),
)


@dataclass(frozen=True, slots=True)
class Names:
    """Where each part of the response request comes from."""

    elements: Mapping[str, Sequence[tuple[str, Rules]]]
    """For each element of `input`, `tools` and `tool_choice.tools`: its path in the chat request, and its rules."""
    fields: Rules
    """For fields that this request names in its own way."""

    @classmethod
    def made(cls, elements: Mapping[str, Sequence[tuple[str, Rules, Any]]], fields: Mapping[str, str]) -> Names:
        """`elements`: each with its path and rules; `fields`: names of this request's own."""
        kept = {name: tuple((place, rules) for place, rules, _ in each) for name, each in elements.items()}
        return cls(kept, (*_rules(*((rf"{re.escape(old)}\b", new) for old, new in fields.items())), *_FIELDS))

    def of(self, path: str) -> str:
        """Returns the path of a response request as the chat request has it."""
        found = _ELEMENT.match(path)
        if found is not None:
            elements, index = self.elements[found[1]], int(found[2])
            if index < len(elements):
                place, rules = elements[index]
                return place + _renamed(path[found.end() :], rules)
        return _renamed(path, self.fields)

    def error(self, error: ErrorObject) -> ErrorObject:
        """Returns the error with the path in its `param`, and where its message names that, as the chat request has
        it. Other words of the message may be values that the client sent."""
        param, message = error.param, error.message
        if param is None:
            return error
        own = self.of(param)
        if message.startswith(param):
            message = own + message[len(param) :]
        return replace(error, message=message.replace(f"'{param}'", f"'{own}'", 1), param=own)


def _renamed(path: str, rules: Rules) -> str:
    for old, new in rules:
        if (found := old.match(path)) is not None:
            return found.expand(new) + path[found.end() :]
    return path
