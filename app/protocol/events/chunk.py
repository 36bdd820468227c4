"""Chunks of a response's log: what one commit adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.events import frames
from app.protocol.status import Status
from app.protocol.types import Json


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events `first` to `last` of one response (sequence numbers, inclusive), ready to be sent."""

    response_id: str
    first: int
    last: int
    attempt: int
    """The attempt that wrote the chunk; 0: the API wrote it, before any claim."""
    tokens: tuple[int, ...]
    """The output token ids whose text these events carry."""
    frames: bytes
    """The events as SSE frames."""
    final: bool = False
    """Whether the last event is the terminal one."""
    steps: tuple[dict[str, Any], ...] = ()
    """What an attempt that continues after these events must know (workers/generation/history.py); usually empty."""
    input_tokens: int = 0
    """Tokens of prompts that the engine was given, and that no chunk before this one counts."""
    cached_tokens: int = 0
    """How many of the prompts' tokens the engine found in its cache, without those that an earlier chunk counts."""

    def after(self, sequence: int) -> Chunk:
        """Returns this chunk without its events up to `sequence` (inclusive). At least one event must be left."""
        if sequence < self.first:
            return self
        kept = frames.split(self.frames)[sequence + 1 - self.first :]
        return replace(self, first=sequence + 1, frames=b"".join(kept))


LAST_OPENING_EVENT = 1
"""The sequence number of the last event that a response is inserted with: created, queued."""


def repeated(response_id: str, response: Json, position: int) -> Chunk | None:
    """Returns the status of a silent response once more, as `response.queued` or `response.in_progress`.

    The event is none of the log: it has the number `position` of the one before it, so whoever resumes behind it misses
    nothing. `response` is the response object to show. None: no event was before.
    """
    if position < 0:
        return None
    status = (Status.QUEUED if position <= LAST_OPENING_EVENT else Status.IN_PROGRESS).value
    event = {"type": f"response.{status}", "sequence_number": position, "response": {**response, "status": status}}
    return Chunk(response_id, position + 1, position, 0, (), frames.encode(event))


def size_of(chunks: Sequence[Chunk]) -> int:
    """Returns how many bytes of events the chunks have."""
    return sum(len(chunk.frames) for chunk in chunks)


def join(chunks: Sequence[Chunk]) -> Chunk:
    """Returns consecutive chunks as one, so that events that arrive together are sent together."""
    if len(chunks) == 1:
        return chunks[0]
    frames_of_all = b"".join(chunk.frames for chunk in chunks)
    return replace(chunks[-1], first=chunks[0].first, tokens=(), frames=frames_of_all, steps=())


@dataclass(frozen=True, slots=True)
class LogSlice:
    """What one read of the log found: its chunks and the response's status, at the same moment."""

    chunks: tuple[Chunk, ...]
    status: Status | None
    """The response's status; None: it does not exist, or was deleted."""
    has_more: bool = False
    """Whether chunks behind these were committed by then: the slice is a page of a longer log."""

    @property
    def ended(self) -> bool:
        """Whether no chunk can follow these."""
        return not self.has_more and (self.status is None or self.status.final)
