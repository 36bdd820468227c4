"""What a chunk writer does with errors that reach it in the middle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.protocol.events.deltas import Text
from app.protocol.events.machine import ResponseStream
from workers.formats.turn import Parsed
from workers.generation.chunk_writer import ChunkWriter
from workers.generation.flush_clock import FlushClock
from workers.generation.journal import Journal
from workers.generation.run import Run


class Stream:
    """A machine that refuses the text `bad`."""

    state = None
    next_sequence = 0

    def feed(self, delta: Text) -> list[dict[str, Any]]:
        if delta.text == "bad":
            raise ValueError("refused")
        return [{"type": "text"}]


def writer_of(run: Any) -> ChunkWriter:
    return ChunkWriter(cast(Journal, None), run, FlushClock())


def run_of(stream: object) -> Run:
    return Run(cast(Any, SimpleNamespace(id="resp_1", worker="w")), cast(Any, None), cast(ResponseStream, stream))


async def test_events_are_not_kept_without_their_tokens() -> None:
    writer = writer_of(run_of(Stream()))
    with pytest.raises(ValueError, match="refused"):
        writer.buffer(Parsed((Text("good"), Text("bad")), (1, 2)))
    assert (writer._events, writer._tokens) == ([], [])
