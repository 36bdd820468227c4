"""The words by which the fault suite's checker knows an unforeseen error occur in the log lines of the source.

Whoever re-words such a line changes `CRASH_WORDS` with it; otherwise the checker would miss that error.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings import CHECKOUT
from tests.faults.checker import CRASH_WORDS, FORESEEN_ERRORS, LIBRARY_CRASH_WORDS

pytestmark = pytest.mark.long

PRODUCT = ("app", "workers")
LEVELS = ("error", "exception", "critical")


def error_lines() -> Iterator[str]:
    """The message of every call of a logger at ERROR or above in the product."""
    for folder in PRODUCT:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not any(f"log.{level}(" in source for level in LEVELS):  # parsing every file takes seconds
                continue
            for node in ast.walk(ast.parse(source)):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="log"), attr=level),
                        args=[ast.Constant(value=str(message)), *_],
                    ) if level in LEVELS:
                        yield message


def test_the_words_of_crashes_and_of_foreseen_errors_are_those_of_the_log_lines() -> None:
    lines, words = list(error_lines()), (*CRASH_WORDS, *FORESEEN_ERRORS)
    unknown = [line for line in lines if not any(word in line for word in words)]
    assert unknown == [], "put a word of each into CRASH_WORDS or into FORESEEN_ERRORS of tests/faults/checker.py"
    assert [word for word in words if not any(word in line for line in lines)] == []


def test_the_crash_words_of_libraries_occur_in_their_source() -> None:
    for word, module in LIBRARY_CRASH_WORDS.items():
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None
        assert word in Path(spec.origin).read_text(encoding="utf-8"), word
