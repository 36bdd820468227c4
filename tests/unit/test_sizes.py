"""What is large, and the size of values as JSON."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from app.protocol.requests.strict_json import loads
from app.sizes import (
    LARGE_BYTES,
    MANY_ITEMS,
    PARSED_FACTOR,
    WEIGHT_BYTES,
    grouped,
    is_large,
    json_size,
    parsed_size,
    weight,
)


@pytest.mark.parametrize(("size", "items"), [(LARGE_BYTES + 1, 0), (0, MANY_ITEMS + 1)])
def test_many_bytes_or_many_items_are_large(size: int, items: int) -> None:
    assert is_large(size, items)
    assert not is_large(max(0, size - 1), max(0, items - 1))


def test_a_batch_counts_what_is_longer_as_more() -> None:
    assert [weight(size) for size in (0, WEIGHT_BYTES - 1, WEIGHT_BYTES, LARGE_BYTES)] == [1, 1, 2, 5]


@pytest.mark.parametrize("dense", ['{"a":1},', '{"a":{"b":[]}},', "[],", '"a",', "1.5,"])
def test_json_of_many_values_counts_as_what_its_objects_take(dense: str) -> None:
    body = f"[{dense * 20_000}1]".encode()
    tracemalloc.start()
    try:
        loads(body)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken / 2 < PARSED_FACTOR * parsed_size(body) < 3 * taken
    assert parsed_size(b'"%s"' % (b"A sentence, as people write it. " * 1000)) == 32_002


def test_the_size_is_that_of_the_json() -> None:
    assert json_size([{"a": "\u00fc"}, [1, 2]], 100) == len('{"a":"ü"}'.encode()) + len("[1,2]")
    assert json_size([], 100) == 0


def test_nothing_is_measured_behind_the_bound() -> None:
    def values() -> Iterator[str]:
        yield "x" * 10
        raise AssertionError("the rest was measured")

    assert json_size(values(), 5) > 5


def test_what_cannot_be_written_counts_as_large() -> None:
    assert is_large(json_size([{"n": 2**80}]))


def test_groups_keep_the_order_and_the_bound_unless_a_single_key_is_larger() -> None:
    sizes = {"a": 4, "b": 6, "c": 1, "d": 20, "e": 0, "f": 10}
    assert grouped(sizes, 10) == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert grouped({}, 10) == []
