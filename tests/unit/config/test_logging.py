"""Log lines: one per record, without passwords."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

from config.logging import CONFIG_FILE
from config.logging.lines import JsonFormatter, LineFormatter


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


def record_of(message: str, **attributes: Any) -> logging.LogRecord:
    record = logging.LogRecord("a.b", logging.INFO, __file__, 1, message, (), None)
    vars(record).update(attributes)
    return record


def test_a_line_of_text_ends_with_its_fields_and_what_it_is_about() -> None:
    text = LineFormatter().format(
        record_of("request", fields={"status": 200, "ms": 1.5, "said": 'a "b"\n'}, subject={"response_id": "resp_1"})
    )
    assert text.endswith('Z INFO a.b: request status=200 ms=1.5 said="a \\"b\\"\\n" response_id=resp_1')


def test_a_line_of_json_is_one_object_with_the_same() -> None:
    record = record_of("at redis://:hunter2@r/0\nnow", fields={"status": 200}, subject={"response_id": "resp_1"})
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text and "hunter2" not in text
    assert line["message"] == "at redis://***@r/0\nnow"
    assert (line["level"], line["logger"], line["status"], line["response_id"]) == ("INFO", "a.b", 200, "resp_1")
    assert line["time"].endswith("Z") and line["pid"] == record.process and line["process"]


def test_json_has_an_exception_and_what_is_not_unicode() -> None:
    record = record_of("half a character: \ud83d", exc_info=(ValueError, raised(), None))
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "half a character: \ud83d"
    assert line["exception"].startswith("ValueError: no")


def test_every_second_has_its_own_time() -> None:
    formatter = LineFormatter()
    texts = [formatter.format(record_of("x", created=created)) for created in (0.25, 0.5, 61.0)]
    assert [text.split(" ")[0] for text in texts] == [
        "1970-01-01T00:00:00.250Z",
        "1970-01-01T00:00:00.500Z",
        "1970-01-01T00:01:01.000Z",
    ]


def test_libraries_read_their_logging_from_the_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIBRARIES, str(CONFIG_FILE)],
        env={**os.environ, "LONGHAUL_LOG_FORMAT": "json", "VLLM_LOGGING_LEVEL": "INFO"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [("vllm.engine", "loaded"), ("uvicorn.error", "up")]


_LIBRARIES = """
import json, logging, sys
from logging.config import dictConfig
dictConfig(json.load(open(sys.argv[1])))
logging.getLogger("vllm.engine").debug("unseen")
logging.getLogger("vllm.engine").info("loaded")
logging.getLogger("uvicorn.error").info("up")
"""
