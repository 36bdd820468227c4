"""A chunk: what one commit adds to the log of a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.events import frames
from app.protocol.status import Status


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events `first` to `last` (sequence numbers, both included) of one response, ready to be sent."""

    response_id: str
    first: int
    last: int
    attempt: int
    """The attempt that wrote it; 0 for what the API wrote before any claim."""
    tokens: tuple[int, ...]
    """The output token ids whose text these events carry."""
    frames: bytes
    """The events as SSE frames."""
    final: bool = False
    """Whether the last event is the terminal one."""
    steps: tuple[dict[str, Any], ...] = ()
    """What these events mean to the attempt that goes on behind them (generation/history.py); mostly nothing."""

    def after(self, sequence: int) -> Chunk:
        """This chunk without the events up to and including `sequence`, of which at least one is left."""
        if sequence < self.first:
            return self
        kept = frames.split(self.frames)[sequence + 1 - self.first :]
        return replace(self, first=sequence + 1, frames=b"".join(kept))


def join(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks that follow one another, as one: what has come in one go is sent in one go."""
    if len(chunks) == 1:
        return chunks[0]
    frames_of_all = b"".join(chunk.frames for chunk in chunks)
    return replace(chunks[-1], first=chunks[0].first, tokens=(), frames=frames_of_all, steps=())


@dataclass(frozen=True, slots=True)
class LogSlice:
    """What one look into the log found: chunks and status of one and the same moment."""

    chunks: tuple[Chunk, ...]
    status: Status | None
    """None: there is no such response (any more)."""

    @property
    def ended(self) -> bool:
        """Nothing will ever follow these chunks."""
        return self.status is None or self.status.final
