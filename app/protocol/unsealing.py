"""Items with sealed text, which clients keep for the server, become items that a model can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from app.protocol.item_types import ADDITIONAL_TOOLS, COMPACTION, MCP_LIST_TOOLS, REASONING
from app.protocol.types import Json

Unseal = Callable[[str], str]
"""Returns the text in a seal; what it raises goes to the caller."""

SUMMARY_HEAD = "Summary of the conversation so far:\n\n"


_INSTRUCTION_ROLES = ("system", "developer")


def since_compaction(context: Sequence[Json], own: Sequence[Json] = ()) -> list[Json]:
    """Returns the items that a model is shown of `context`, which the server kept, and of a request's `own` items.

    The newest compaction stands for everything before it, except for system and developer messages, and items
    that list tools. If `own` holds the compaction and nothing before it but messages to the model, its client chose to
    keep them.
    """
    items = [*context, *own]
    newest = max((index for index, item in enumerate(items) if item["type"] == COMPACTION), default=0)
    before = items[:newest]
    if newest >= len(context) and all(item.get("role") == "user" or is_kept(item) for item in before):
        return items
    kept = [item for item in before if is_kept(item)]
    return [*kept, *items[newest:]]


def is_kept(item: Json) -> bool:
    """Whether the item stays in the context when a compaction replaces what is before it."""
    return item.get("role") in _INSTRUCTION_ROLES or item["type"] in (MCP_LIST_TOOLS, ADDITIONAL_TOOLS)


def unsealed(items: Iterable[Json], unseal_reasoning: Unseal, unseal_summary: Unseal) -> list[Json]:
    """Returns `items` with each compaction as a user message, and with the text of sealed reasoning."""
    return [_readable(item, unseal_reasoning, unseal_summary) for item in items]


def _readable(item: Json, unseal_reasoning: Unseal, unseal_summary: Unseal) -> Json:
    if item["type"] == COMPACTION:
        part = {"type": "input_text", "text": SUMMARY_HEAD + unseal_summary(item["encrypted_content"])}
        return {"type": "message", "id": item["id"], "status": "completed", "role": "user", "content": [part]}
    if item["type"] == REASONING and not item["content"] and item.get("encrypted_content"):
        text = unseal_reasoning(item["encrypted_content"])
        return {**item, "content": [{"type": "reasoning_text", "text": text}]}
    return item
