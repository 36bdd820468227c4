"""How fields of a response request are called in a Messages request."""

from __future__ import annotations

import re

from app.translation.names import Names, Placed, rules

PART = rules((r"\.image_url", ".source"), (r"\.file_(id|data|url)", ".source"), (r"\.filename", ".title"))
"""Within an image or a document."""
CALL = rules((r"\.call_id", ".id"), (r"\.arguments", ".input"))
RESULT = rules((r"\.call_id", ".tool_use_id"), (r"\.output", ".content"), *((old.pattern, new) for old, new in PART))
THOUGHT = rules((r"\.encrypted_content", ".signature"), (r".*", ".thinking"))
SEALED = rules((r".*", ".data"))
TOOL = rules((r"\.parameters", ".input_schema"), (r"\.filters", ""))
SERVER = rules((r"\.server_label", ".name"), (r"\.server_url", ".url"), (r"\.authorization", ".authorization_token"))
STRING = rules((r"\.content.*", ".content"))
"""Rules for a message whose content is no list."""
WHOLE = rules((r".*", ""))
"""Rules for elements whose fields have no counterparts."""

_INDEX = re.compile(r"\[(\d+)\]")


def dotted(path: str) -> str:
    """Returns a path as Anthropic's API spells it: `messages.3.content.0`."""
    return _INDEX.sub(r".\1", path)


def message_names(items: list[Placed], tools: list[Placed], format_field: str) -> Names:
    """`format_field`: where the request has its format."""
    fields = rules(
        (r"input\b", "messages"),
        (r"instructions\b", "system"),
        (r"max_output_tokens\b", "max_tokens"),
        (r"stop\b", "stop_sequences"),
        (r"reasoning\.effort\b", "output_config.effort"),
        (r"text\.format\b", format_field),
        (r"tool_choice\.type\b", "tool_choice.name"),
    )
    return Names({"input": [origin for origin, _ in items], "tools": [origin for origin, _ in tools]}, fields, dotted)
