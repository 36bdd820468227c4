"""Views: deltas of readers that ask for it are padded, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.view import BLOCK_BYTES, PADDED, PLAIN, obfuscated
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk

Json = dict[str, Any]

DELTA: Json = {"type": "response.output_text.delta", "sequence_number": 7, "delta": "Hi", "logprobs": []}
DONE: Json = {"type": "response.output_text.done", "sequence_number": 8, "text": 'a.delta\n}\n\ndata: "'}


@pytest.mark.parametrize("text", ["", "a", 'quoted "}\n\n', "ä👋", "\0", *("x" * length for length in range(60, 70))])
@pytest.mark.parametrize("kind", ["output_text", "reasoning_text", "function_call_arguments", "mcp_call_arguments"])
def test_from_its_text_on_a_padded_delta_is_whole_blocks_with_its_content(kind: str, text: str) -> None:
    event = {**DELTA, "type": f"response.{kind}.delta", "delta": text}
    padded = obfuscated(frames.encode(event))
    assert (len(padded) - padded.index(b'"delta":')) % BLOCK_BYTES == 0
    (read,) = frames.decode(padded)
    assert isinstance(read.pop("obfuscation"), str)
    assert read == event


@pytest.mark.parametrize("number", [1, 10, 100, 10**6])
def test_tokens_of_a_word_look_alike(number: int) -> None:
    events = ({**DELTA, "sequence_number": number, "delta": "x" * length} for length in range(1, 17))
    assert len({len(obfuscated(frames.encode(event))) for event in events}) == 1


def test_other_events_stay_as_they_are() -> None:
    encoded = frames.encode_all([DONE, DELTA, DONE])
    first, middle, last = frames.split(obfuscated(encoded))
    assert first == last == frames.encode(DONE)
    assert middle != frames.encode(DELTA)


def test_padding_is_random_but_its_length_tells_nothing_new() -> None:
    first, second = (obfuscated(frames.encode(DELTA)) for _ in range(2))
    assert len(first) == len(second)
    assert first != second


def pulse(size: int) -> Chunk:
    return Chunk("resp_1", 2, 2, 1, (), frames.encode({**DELTA, "delta": "x" * size}))


async def test_a_plain_view_shows_the_log_as_it_is() -> None:
    written = pulse(5)
    assert await PLAIN.shown(written) == written.frames
    assert await PADDED.shown(written) != written.frames
    assert await PLAIN.shown(None) == await PADDED.shown(None) == frames.KEEPALIVE_COMMENT
