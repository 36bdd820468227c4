"""Log lines: one per record, without passwords."""

from __future__ import annotations

import logging
import sys

from config.logging import LineFormatter


def line(message: str, *args: object, tracebacks: bool = False, error: BaseException | None = None) -> str:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, args, info)
    return LineFormatter(tracebacks).format(record)


def raised() -> ValueError:
    try:
        raise ValueError("no\nway")
    except ValueError:
        error = sys.exc_info()[1]
        assert isinstance(error, ValueError)
        return error


def test_a_record_is_one_line_with_time_level_and_name() -> None:
    text = line("two\nlines and %s", "a\r\nthird")
    assert text.endswith("Z WARNING a.b: two\\nlines and a\\r\\nthird")
    assert "\n" not in text


def test_a_password_in_a_url_is_not_written() -> None:
    text = line("at %s and redis://:hunter2@r/0", "postgresql://me:hunter2@db/x")
    assert "hunter2" not in text
    assert "postgresql://***@db/x and redis://***@r/0" in text


def test_an_exception_is_logged_with_its_message_and_frames() -> None:
    text = line("failed", error=raised())
    assert "failed | ValueError: no (test_logging.py:" in text
    assert "way" not in text  # DETAIL lines of databases quote rows
    assert "Traceback" not in text


def test_a_traceback_is_one_line_too() -> None:
    text = line("failed", error=raised(), tracebacks=True)
    assert "Traceback (most recent call last)" in text
    assert "\n" not in text
