"""How many tokens a frame of the server has: each one costs both sides 0.1 ms of CPU."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from math import inf

from workers.engine.server.frames import Piece

FRAME_SECONDS = 0.02
"""Seconds of one frame: a reader sees no pause."""
MAX_FRAME_TOKENS = 16
"""A frame that is lost with its server is computed again."""
MIN_MEASURED_TOKENS = 16
"""A stream with fewer tokens says nothing about the pace."""


class FrameSize:
    """The pace of the stream that ended last. Until one has, each frame has one token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds_per_token = inf

    def tokens_in(self, seconds: float) -> int:
        """How many tokens come in these seconds, or in FRAME_SECONDS if that is longer."""
        return min(max(int(max(FRAME_SECONDS, seconds) / self._seconds_per_token), 1), MAX_FRAME_TOKENS)

    async def measured(self, pieces: AsyncIterator[Piece]) -> AsyncGenerator[Piece]:
        """The pieces of one stream, unchanged."""
        began, tokens = None, 0
        async for piece in pieces:
            if began is None:
                began = self._clock()
            else:
                tokens += len(piece.token_ids)
            yield piece
        if began is not None and tokens >= MIN_MEASURED_TOKENS:
            self._seconds_per_token = max((self._clock() - began) / tokens, FRAME_SECONDS / MAX_FRAME_TOKENS)
