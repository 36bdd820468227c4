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


def error_lines() -> Iterator[tuple[str, str]]:
    """(place, message) of every call of a logger at ERROR or above in the product."""
    for folder in PRODUCT:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not any(f"log.{level}(" in source for level in LEVELS):  # parsing every file takes seconds
                continue
            for node in ast.walk(ast.parse(source)):
                if (message := _logged(node)) is not None:
                    yield f"{path.relative_to(CHECKOUT)}: {message!r}", message


def _logged(node: ast.AST) -> str | None:
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[ast.Constant(value=str(message)), *_]
        ):
            return message if level in LEVELS else None
    return None


ERROR_LINES = dict(error_lines())


@pytest.mark.parametrize("word", CRASH_WORDS)
def test_a_crash_word_occurs_in_a_log_line_of_the_product(word: str) -> None:
    assert any(word in message for message in ERROR_LINES.values())


@pytest.mark.parametrize(("word", "module"), LIBRARY_CRASH_WORDS.items())
def test_a_librarys_crash_word_occurs_in_its_source(word: str, module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    assert word in Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ERROR_LINES)
def test_an_error_line_is_a_crash_or_foreseen(place: str) -> None:
    message = ERROR_LINES[place]
    crash = any(word in message for word in CRASH_WORDS)
    foreseen = any(word in message for word in FORESEEN_ERRORS)
    assert crash or foreseen, (
        "put a word of this line into CRASH_WORDS or into FORESEEN_ERRORS of tests/faults/checker.py"
    )


@pytest.mark.parametrize("word", FORESEEN_ERRORS)
def test_a_foreseen_error_occurs_in_a_log_line_of_the_product(word: str) -> None:
    assert any(word in message for message in ERROR_LINES.values())
