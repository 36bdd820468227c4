"""Frames and chunks are cut at the event that the reader names, byte for byte."""

from __future__ import annotations

import httpx
from hypothesis import example, given
from hypothesis import strategies as st

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, join

text_lists = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8)


def chunk_of(texts: list[str], first: int = 0) -> Chunk:
    events = [{"type": "t", "sequence_number": first + i, "delta": text} for i, text in enumerate(texts)]
    return Chunk("resp_1", first, first + len(texts) - 1, 1, (), frames.encode_all(events))


@given(text_lists)
def test_a_frame_holds_any_text_and_only_an_empty_line_ends_it(texts: list[str]) -> None:
    chunk = chunk_of(texts)
    assert [event["delta"] for event in frames.decode(chunk.frames)] == texts
    assert b"".join(frames.split(chunk.frames)) == chunk.frames
    assert len(frames.split(chunk.frames)) == len(texts)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("".join(map(chr, range(0x3000))))
def test_a_client_that_splits_text_into_lines_finds_three_in_a_frame(text: str) -> None:
    encoded = frames.encode({"type": "t", "sequence_number": 0, "delta": text})
    assert len(list(httpx.Response(200, content=encoded).iter_lines())) == 3
    assert frames.decode(encoded)[0]["delta"] == text


@given(text_lists, st.integers(0, 50), st.data())
def test_a_chunk_after_a_sequence_number_has_the_later_events(
    texts: list[str], first: int, data: st.DataObject
) -> None:
    chunk = chunk_of(texts, first)
    after = data.draw(st.integers(-1, chunk.last - 1))
    rest = chunk.after(after)
    numbers = [event["sequence_number"] for event in frames.decode(rest.frames)]
    assert numbers == [number for number in range(first, chunk.last + 1) if number > after]
    assert (rest.first, rest.last) == (numbers[0], numbers[-1])
    assert chunk.frames.endswith(rest.frames)


def test_the_event_line_names_the_type() -> None:
    assert frames.encode({"type": "response.created", "n": 1}) == (
        b'event: response.created\ndata: {"type":"response.created","n":1}\n\n'
    )


@given(text_lists, st.integers(1, 7), st.integers(0, 50))
def test_consecutive_chunks_join_into_one(texts: list[str], size: int, first: int) -> None:
    pieces = [chunk_of(texts[at : at + size], first + at) for at in range(0, len(texts), size)]
    assert join(pieces) == chunk_of(texts, first)
