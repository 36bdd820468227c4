"""What a chunk writer does with errors that reach it in the middle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.protocol.events.deltas import Text
from workers.formats.turn import Parsed
from workers.generation.run import Run
from workers.generation.writing.chunk_writer import ChunkWriter
from workers.generation.writing.flush_clock import FlushClock


class Stream:
    """A machine that refuses the text `bad`."""

    state = None
    next_sequence = 0

    def feed(self, delta: Text) -> list[dict[str, Any]]:
        if delta.text == "bad":
            raise ValueError("refused")
        return [{"type": "text"}]


async def test_events_are_not_written_without_their_tokens() -> None:
    appended: list[Any] = []
    row: Any = SimpleNamespace(id="resp_1", worker="w")
    writer = ChunkWriter(
        cast(Any, SimpleNamespace(append=appended.append)), Run(row, cast(Any, None), cast(Any, Stream())), FlushClock()
    )
    with pytest.raises(ValueError, match="refused"):
        writer.buffer(Parsed((Text("good"), Text("bad")), (1, 2)))
    await writer.flush()
    assert appended == []
