"""Events and tokens come back as they were stored, and events take little room."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.events import frames
from app.protocol.events.deltas import Text
from app.protocol.events.machine import ResponseStream
from app.protocol.response import response_object
from app.store.packing import DICTIONARY, pack_events, pack_tokens, unpack_events, unpack_tokens
from tests.support.requests import stored_request


def test_the_dictionary_is_the_one_that_stored_events_need() -> None:
    """Another one would make every log unreadable. New events need none: they are packed without its help."""
    assert zlib.crc32(DICTIONARY) == 3495188644


@given(st.binary(max_size=50_000))
def test_what_was_packed_is_unpacked_as_it_was(encoded: bytes) -> None:
    packed = pack_events(encoded)
    assert unpack_events(packed) == encoded
    assert unpack_events(packed) == unpack_events(pack_events(encoded)), "a repeated append is known by its bytes"


@pytest.mark.parametrize("damaged", [b"", b"poison", pack_events(b"event: x" * 99)[:-1], b"\0" * 64])
def test_what_cannot_be_unpacked_is_returned_as_it_is(damaged: bytes) -> None:
    assert unpack_events(damaged) == damaged
    assert frames.split(unpack_events(damaged)) == []


def test_deltas_take_a_tenth_of_their_bytes_and_one_delta_takes_two_fifths() -> None:
    response = response_object(
        stored_request(input="Hi"), response_id=f"resp_{'0123456789' * 4}", created_at=1764100000
    )
    stream = ResponseStream(response)
    opening = frames.encode_all(stream.accept())
    assert 9 * len(pack_events(opening)) < len(opening)
    frames.encode_all(stream.begin() + stream.feed(Text("Once")))
    deltas = [frames.encode_all(stream.feed(Text(f" {word}"))) for word in ("upon", "a", "time", "there")]
    assert 5 * len(pack_events(deltas[0])) < 2 * len(deltas[0])
    assert 10 * len(pack_events(b"".join(deltas))) < len(b"".join(deltas))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_tokens_are_unpacked_as_they_were(tokens: list[int]) -> None:
    assert unpack_tokens(pack_tokens(tokens)) == tuple(tokens)
