"""Items with sealed text, which clients keep for the server, become items that a model can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.protocol.item_types import COMPACTION, REASONING
from app.protocol.types import Json

Unseal = Callable[[str], str]
"""Returns the text in a seal; what it raises goes to the caller."""

SUMMARY_HEAD = "Summary of the conversation so far:\n\n"


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
