"""A file of lines, however it is cut into pieces."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batches.jsonl import LineSplitter, RawLine

_LONGEST = 16


def _lines(pieces: Iterable[bytes], splitter: LineSplitter | None = None) -> list[RawLine]:
    splitter = splitter or LineSplitter(_LONGEST)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return [*found, *splitter.end()]


def _data(file: bytes) -> list[tuple[int, bytes | None]]:
    return [(line.number, line.data) for line in _lines([file])]


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        (b"a\r\nb\r\n", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbfa\nb\n", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbf", []),
        (b"a\n\n  \t\nb\n", [(1, b"a"), (4, b"b")]),
        (b"a\n" + b"x" * (_LONGEST + 1) + b"\nb\n", [(1, b"a"), (2, None), (3, b"b")]),
        (b"x" * _LONGEST + b"\r\n", [(1, b"x" * _LONGEST)]),
        (b"x" * 100, [(1, None)]),
    ],
)
def test_lines_have_the_numbers_of_an_editor(file: bytes, lines: list[tuple[int, bytes | None]]) -> None:
    assert _data(file) == lines


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_how_the_file_is_cut_changes_nothing(file: bytes, cuts: list[int]) -> None:
    at = sorted({0, len(file), *(cut for cut in cuts if cut < len(file))})
    pieces = [file[start:end] for start, end in pairwise(at)]
    assert _lines(pieces) == _lines([file])


@given(st.binary(max_size=60).map(lambda file: file.replace(b"\xef", b"e")))
def test_whoever_goes_on_behind_a_line_reads_the_rest(file: bytes) -> None:
    lines = _lines([file])
    for place, line in enumerate(lines):
        rest = LineSplitter(_LONGEST, number=line.number, offset=line.end)
        assert _lines([file[line.end :]], rest) == lines[place + 1 :]


def test_a_line_that_is_too_long_is_not_kept() -> None:
    splitter = LineSplitter(_LONGEST)
    tracemalloc.start()
    try:
        for _ in range(1000):
            assert list(splitter.feed(b"x" * 1000)) == []
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
