"""Messages of pub/sub: signed, for one response, and never large."""

from __future__ import annotations

import pytest

from app.protocol.events.chunk import Chunk
from app.streaming.message import MAX_FRAMES_BYTES, ForgedMessage, Messages

MESSAGES = Messages(b"k" * 32)
CHUNK = Chunk("resp_1", 3, 5, 2, (), b"event: x\ndata: {}\n\n", True)


def test_a_message_holds_the_chunk() -> None:
    assert MESSAGES.unpack("resp_1", MESSAGES.pack(CHUNK)) == CHUNK


def test_of_a_large_chunk_only_the_news_is_sent() -> None:
    largest = Chunk("resp_1", 0, 0, 1, (), b"a" * MAX_FRAMES_BYTES)
    assert MESSAGES.unpack("resp_1", MESSAGES.pack(largest)) == largest
    packed = MESSAGES.pack(Chunk("resp_1", 0, 0, 1, (), b"a" * (MAX_FRAMES_BYTES + 1)))
    assert len(packed) < 100
    assert MESSAGES.unpack("resp_1", packed) is None


@pytest.mark.parametrize("forged", [b"", b"x", b"\0" * 100, Messages(b"other" * 6).pack(CHUNK)])
def test_what_nobody_here_made_is_refused(forged: bytes) -> None:
    with pytest.raises(ForgedMessage):
        MESSAGES.unpack("resp_1", forged)


def test_every_byte_of_a_message_counts() -> None:
    packed = MESSAGES.pack(CHUNK)
    for index in range(len(packed)):
        changed = bytearray(packed)
        changed[index] ^= 1
        with pytest.raises(ForgedMessage):
            MESSAGES.unpack("resp_1", bytes(changed))


def test_a_message_of_another_response_is_refused() -> None:
    with pytest.raises(ForgedMessage):
        MESSAGES.unpack("resp_2", MESSAGES.pack(CHUNK))
