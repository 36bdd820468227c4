"""How fields of a response request are called in a chat request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from app.translation.names import Names, Placed, rules

MESSAGE = rules(
    (r"(\.content\[\d+\])\.(image_url)", r"\1.\2.url"),
    (r"(\.content\[\d+\])\.detail", r"\1.image_url.detail"),
    (r"(\.content\[\d+\])\.(file_id|file_data|filename)", r"\1.file.\2"),
)
REASONING = rules((r".*", ""))
OF_CALLS = {
    kind: rules((r"\.call_id", ".id"), (r"\.(name|arguments|input)", rf".{kind}.\1")) for kind in ("function", "custom")
}
OUTPUT = rules(
    (r"\.call_id", ".tool_call_id"),
    (r"\.output(\[\d+\])\.image_url", r".content\1.image_url.url"),
    (r"\.output(\[\d+\])\.detail", r".content\1.image_url.detail"),
    (r"\.output(\[\d+\])\.(file_id|file_data|filename)", r".content\1.file.\2"),
    (r"\.output", ".content"),
)
_GRAMMAR = (r"\.format\.(syntax|definition)", r".custom.format.grammar.\1")
OF_TOOLS = {kind: rules(_GRAMMAR, (r"\.(?!type\b)", f".{kind}.")) for kind in ("function", "custom")}

_FIELDS = rules(
    (r"input\b", "messages"),
    (r"include(\[\d+\])?", "logprobs"),
    (r"text\.verbosity\b", "verbosity"),
    (r"text\.format\.(?!type\b)", "response_format.json_schema."),
    (r"text\.format\b", "response_format"),
    (r"tool_choice\.(mode|tools)\b", r"tool_choice.allowed_tools.\1"),
)


def chat_names(elements: Mapping[str, Sequence[Placed]], fields: Mapping[str, str]) -> Names:
    """`fields`: names of this request's own."""
    own = rules(*((rf"{re.escape(old)}\b", new) for old, new in fields.items()))
    return Names({name: [origin for origin, _ in each] for name, each in elements.items()}, (*own, *_FIELDS))
