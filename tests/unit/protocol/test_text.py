"""Text is cut to a length, and says so."""

from __future__ import annotations

from app.protocol.text import one_line, shortened


def test_a_long_text_ends_with_an_ellipsis() -> None:
    assert shortened("x" * 64) == "x" * 64
    assert shortened("x" * 65) == "x" * 63 + "…"
    assert shortened("abcdef", 4) == "abc…"


def test_an_error_is_one_line_with_its_type() -> None:
    assert one_line(ValueError("first\n  second")) == "ValueError: first second"
    assert len(one_line(ValueError("x" * 1000))) == 300
