"""What the queue is told of a response."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """What a Celery message for a response says, and where it goes."""

    response_id: str
    model: str
    queue: str
    priority: int
