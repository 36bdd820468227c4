"""A response's reservation of its project's limits."""

from __future__ import annotations

from app.protocol.tasks import COMPACT
from app.protocol.types import Json
from app.responses.models.catalog import Terms
from app.store.responses.new_rows import Reserving


def reserving_of(
    document: Json, terms: Terms, context_bytes: int, tokens: int, longest: int | None
) -> Reserving | None:
    """Returns what the response reserves; None: its project has no limits that responses reserve of.

    With a limit on tokens it writes into the document where the answer, and a summary of the context, end: after so
    many `tokens` each, unless the request says otherwise. `context_bytes`: of all that the response continues.
    `longest`: the tokens of the model's context, if known: no answer is longer, whatever is asked for.
    """
    if not terms.reserves_tokens:
        return Reserving(0, None) if terms.is_limited else None
    output = 0
    if document["task"] is None:
        asked = document["max_output_tokens"]
        output = max(tokens, document["extra"].get("min_tokens") or 0) if asked is None else asked
        document["max_output_tokens"] = output
        output = min(output, longest or output)
    if document["task"] == COMPACT or document["compaction"] is not None:
        document["summary_tokens"] = tokens
        output += tokens
    return Reserving(context_bytes, output)
