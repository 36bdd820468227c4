"""Turns a grammar of plain text into the grammar of that text inside a JSON string.

A custom tool's input is a string in the JSON of a function call, so its grammar must describe the escaped text. The
grammar is EBNF as xgrammar prints it: rules of string literals and character classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LEXEME = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]', re.DOTALL)
_COUNTER = re.compile(r"\b\w+\{\d+, ?-?\d*\}")
_TOKEN_REFERENCE = re.compile(r"\b\w*(?:Dispatch|Token)\(")
_CODE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_NAMED = {"n": 10, "r": 13, "t": 9, "b": 8, "f": 12, "v": 11, "0": 0, "a": 7, "e": 27}
_ESCAPES = {34: r"\"", 92: r"\\", 8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r"}
_SPECIAL = (*range(32), 34, 92)
"""Characters that a JSON string cannot hold unescaped."""
MAX_CODE = 0x10FFFF

Range = tuple[int, int]


def in_json_string(ebnf: str) -> str:
    """The grammar of the escaped text. Raises ValueError if the grammar refers to tokens."""
    if _TOKEN_REFERENCE.search(ebnf):
        raise ValueError("the grammar refers to tokens")
    return _LEXEME.sub(lambda found: _literal(found[0]) if found[0][0] == '"' else _class(found[0]), ebnf)


def counters(ebnf: str) -> list[str]:
    """The repetitions of a rule that are counted, as `rule{2, 9}`, each once."""
    return sorted(set(_COUNTER.findall(_LEXEME.sub(" ", ebnf))))


def class_of(ranges: Iterable[Range]) -> str:
    """The lexeme of one character of these."""
    found = list(ranges)
    if len(found) == 1 and found[0][0] == found[0][1] and found[0][0] >= 32:
        return quoted(chr(found[0][0]))
    return "[" + "".join(f"{_code_point(first)}-{_code_point(last)}" for first, last in found) + "]"


def _literal(lexeme: str) -> str:
    return quoted("".join(_escaped(code) for code in _codes(lexeme[1:-1])))


def _class(lexeme: str) -> str:
    negated = lexeme[1] == "^"
    ranges = list(_ranges(lexeme[2 if negated else 1 : -1]))
    if negated:
        ranges = list(inverted(ranges))
    special = [code for code in _SPECIAL if any(first <= code <= last for first, last in ranges)]
    plain = [part for span in ranges for part in _without(span, special)]
    chosen = [class_of(plain)] if plain else []
    return "(" + " | ".join([*chosen, *(quoted(_escaped(code)) for code in special)]) + ")"


def _codes(text: str) -> Iterator[int]:
    for found in _CODE.finditer(text):
        digits = found[1] or found[2] or found[3]
        if digits:
            yield int(digits, 16)
        elif found[4]:
            yield _NAMED.get(found[4], ord(found[4]))
        else:
            yield ord(found[5])


def _ranges(text: str) -> Iterator[Range]:
    """The ranges of a class. A dash between two characters makes a range; an escaped dash is a dash."""
    parts = [(found[0], next(_codes(found[0]))) for found in _CODE.finditer(text)]
    index = 0
    while index < len(parts):
        first = parts[index][1]
        if index + 2 < len(parts) and parts[index + 1][0] == "-":
            yield first, parts[index + 2][1]
            index += 3
        else:
            yield first, first
            index += 1


def inverted(ranges: Iterable[Range]) -> Iterator[Range]:
    """All other characters."""
    begin = 0
    for first, last in sorted(ranges):
        if begin < first:
            yield begin, first - 1
        begin = max(begin, last + 1)
    if begin <= MAX_CODE:
        yield begin, MAX_CODE


def _without(span: Range, codes: Iterable[int]) -> Iterator[Range]:
    first, last = span
    for code in codes:
        if first <= code <= last:
            if first < code:
                yield first, code - 1
            first = code + 1
    if first <= last:
        yield first, last


def _escaped(code: int) -> str:
    if code in _ESCAPES:
        return _ESCAPES[code]
    return f"\\u{code:04x}" if code < 32 else chr(code)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _code_point(code: int) -> str:
    return f"\\U{code:08x}"
