"""How many tokens a frame of the server has: each one costs both sides 0.1 ms of CPU, and 20 ms are no pause to a
reader."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from workers.engine.server.frames import Piece

FRAME_SECONDS = 0.02
MAX_FRAME_TOKENS = 16
"""Most tokens of a frame: so many are lost with a server, and computed again."""
LEAST_MEASURED = 16
"""A stream with fewer tokens says nothing about the pace."""


class FrameSize:
    """The pace of the stream that ended last. Until one has, each frame has one token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds_per_token = FRAME_SECONDS

    @property
    def tokens_per_frame(self) -> int:
        return min(max(int(FRAME_SECONDS / self._seconds_per_token), 1), MAX_FRAME_TOKENS)

    async def measured(self, pieces: AsyncIterator[Piece]) -> AsyncGenerator[Piece]:
        """The pieces of one stream, unchanged."""
        began, tokens = None, 0
        async for piece in pieces:
            if began is None:
                began = self._clock()
            else:
                tokens += len(piece.token_ids)
            yield piece
        if began is not None and tokens >= LEAST_MEASURED:
            self._seconds_per_token = max((self._clock() - began) / tokens, FRAME_SECONDS / MAX_FRAME_TOKENS)
