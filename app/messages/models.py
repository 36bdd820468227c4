"""The served models as Anthropic's API lists them."""

from __future__ import annotations

from app.protocol.types import Json

_NEVER = "1970-01-01T00:00:00Z"
"""Models have no date here; Anthropic's API says so in this way."""


def model_info(name: str, context_length: int | None) -> Json:
    """Returns one model. `context_length` in tokens; None: no worker has said it."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _NEVER,
        "lifecycle": "active",
        "max_input_tokens": context_length,
        "max_tokens": context_length,
    }


def model_list(models: list[Json]) -> Json:
    """Returns all models as the only page."""
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"data": models, "has_more": False, "first_id": first, "last_id": last}
