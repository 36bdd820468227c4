"""The size of values as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from app.protocol.json_size import json_size


def test_the_size_is_that_of_the_json() -> None:
    assert json_size([{"a": "\u00fc"}, [1, 2]], 100) == len('{"a":"ü"}'.encode()) + len("[1,2]")
    assert json_size([], 100) == 0


def test_nothing_is_measured_behind_the_bound() -> None:
    def values() -> Iterator[str]:
        yield "x" * 10
        raise AssertionError("the rest was measured")

    assert json_size(values(), 5) > 5


def test_what_cannot_be_written_counts_as_large() -> None:
    assert json_size([{"n": 2**80}], 100) > 100
