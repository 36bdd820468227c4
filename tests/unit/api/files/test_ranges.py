"""The header 'Range'."""

from __future__ import annotations

import pytest

from app.api.files.content import ByteRange, NotSatisfiable, range_of

SIZE = 10


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-9", (0, 10)),
        ("bytes=3-", (3, 10)),
        ("bytes=9-100", (9, 10)),
        ("bytes=-1", (9, 10)),
        ("bytes=-100", (0, 10)),
        (" BYTES= 2-4 ", (2, 5)),
        (None, None),
        ("", None),
        ("bytes", None),
        ("bytes=", None),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,3-4", None),
        ("bytes=1-2x", None),
        ("bytes=+1-2", None),
        ("bytes=1--2", None),
        ("lines=0-1", None),
        (f"bytes={'1' * 20}-", None),
    ],
)
def test_one_range_is_honoured_and_what_is_none_is_ignored(
    header: str | None, expected: tuple[int, int] | None
) -> None:
    assert range_of(header, SIZE) == (None if expected is None else ByteRange(*expected))


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=9999999999999999999-"])
def test_a_range_without_a_byte_is_not_satisfiable(header: str) -> None:
    with pytest.raises(NotSatisfiable):
        range_of(header, SIZE)


def test_nothing_is_the_end_of_an_empty_content() -> None:
    assert range_of("bytes=-5", 0) is None
    with pytest.raises(NotSatisfiable):
        range_of("bytes=0-", 0)
