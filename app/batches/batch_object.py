"""A batch as clients see it: openai's Batch."""

from __future__ import annotations

from datetime import datetime

from app.protocol.status import BATCH_TIMES
from app.protocol.types import Json
from app.store.batches.rows import BatchRow


def batch_object(row: BatchRow) -> Json:
    """Returns openai's Batch; `retry_of` is an extension."""
    times = {f"{name}_at": _seconds(getattr(row, f"{name}_at")) for name in BATCH_TIMES}
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": row.errors,
        "input_file_id": row.input_file,
        "completion_window": row.completion_window,
        "status": row.status.value,
        "output_file_id": row.output_file,
        "error_file_id": row.error_file,
        "created_at": _seconds(row.created_at),
        "expires_at": _seconds(row.due_at),
        **times,
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        "metadata": row.metadata,
        "retry_of": row.retry_of,
    }


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
