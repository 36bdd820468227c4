"""Items whose text clients keep for us, sealed -> items that a model can be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.protocol.types import Json

Open = Callable[[str], str]
"""A seal -> its text; whatever it raises goes to the caller."""

COMPACTION = "compaction"
SUMMARY_HEAD = "Summary of the conversation so far:\n\n"


def unsealed(
    items: Iterable[Json], open_reasoning: Callable[[str], str], open_summary: Callable[[str], str]
) -> list[Json]:
    """Compactions as messages of the user, and reasoning with its text. What opens a seal may raise."""
    return [_shown(item, open_reasoning, open_summary) for item in items]


def _shown(item: Json, open_reasoning: Open, open_summary: Open) -> Json:
    if item["type"] == COMPACTION:
        part = {"type": "input_text", "text": SUMMARY_HEAD + open_summary(item["encrypted_content"])}
        return {"type": "message", "id": item["id"], "status": "completed", "role": "user", "content": [part]}
    if item["type"] == "reasoning" and not item["content"] and item.get("encrypted_content"):
        text = open_reasoning(item["encrypted_content"])
        return {**item, "content": [{"type": "reasoning_text", "text": text}]}
    return item
