"""Regular expressions of ECMAScript, which JSON schemas use, as languages."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import starmap
from typing import Any

from workers.engine.json_grammar import Range, inverted
from workers.engine.schemas.languages import ANYTHING, EMPTY, Language, chars, either, repeated, sequence

MAX_REPEAT = 10_000
_DIGIT, _WORD = [(48, 57)], [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE = [(9, 13), (32, 32), (160, 160), (5760, 5760), (8192, 8202), (8232, 8233), (8239, 8239), (8287, 8287)]
_SPACE += [(12288, 12288), (65279, 65279)]
_CATEGORIES = {"DIGIT": _DIGIT, "WORD": _WORD, "SPACE": _SPACE}
"""As ECMAScript has them, whose regular expressions JSON schemas use."""
_ESCAPE = re.compile(r"\\(?:c([A-Za-z])|u([dD][89abAB]\w\w)\\u([dD][c-fC-F]\w\w)|.)", re.DOTALL)
_TOKEN = re.compile(r"\[(?:\\.|[^\]\\])*|\(\?<(?![=!])|" + _ESCAPE.pattern, re.DOTALL)
"""A class of characters, the beginning of a group with a name, or an escape."""
_UNKNOWN = {"AT": "an anchor inside", "GROUPREF": "a back reference"}
_UNKNOWN |= dict.fromkeys(("ASSERT", "ASSERT_NOT"), "a lookaround")
_UNKNOWN |= {"SUBPATTERN": "flags", "GROUPREF_EXISTS": "a condition"}
_UNKNOWN |= {"POSSESSIVE_REPEAT": "a possessive repeat", "ATOMIC_GROUP": "an atomic group"}
_LINE_ENDS = [(10, 10), (13, 13), (8232, 8233)]


@cache
def pattern(text: str) -> Language:
    """The texts in which this regular expression finds something. Raises ValueError for what it cannot do."""
    text = _TOKEN.sub(_in_python, text)
    parser: Any = re._parser  # type: ignore[attr-defined]  # the one parser of regular expressions there is
    try:
        with warnings.catch_warnings(action="ignore"):  # of what Python may change
            parsed = parser.parse(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the pattern cannot be read: {error}") from None
    if parsed.state.flags & ~re.UNICODE:
        raise ValueError("the pattern has flags")
    return _found(list(parsed))


def _in_python(token: re.Match[str]) -> str:
    """What ECMAScript writes otherwise: groups with names, control characters, surrogate pairs."""
    return "(?P<" if token[0] == "(?<" else _ESCAPE.sub(_unescaped, token[0])


def _unescaped(escape: re.Match[str]) -> str:
    control, high, low = escape.groups()
    if high:
        return f"\\U{0x10000 + (int(high, 16) - 0xD800) * 1024 + int(low, 16) - 0xDC00:08x}"
    return f"\\x{ord(control) % 32:02x}" if control else escape[0]


def _found(items: list[Any], head: Language = ANYTHING, tail: Language = ANYTHING) -> Language:
    """A pattern that is searched for, not matched as a whole: `head` may stand before it, and `tail` after it.

    Anchors may stand at both ends of each alternative. Python's parser takes out of alternatives what all of them begin
    with, so `^a$|^b$` comes as `^(a$|b$)`.
    """
    while items and str(items[0][1]) == "AT_BEGINNING":
        head, items = EMPTY, items[1:]
    while items and str(items[-1][1]) == "AT_END":
        tail, items = EMPTY, items[:-1]
    for place in {0, len(items) - 1} if items else ():
        if _has_anchor(*items[place]) and (alternatives := _alternatives(*items[place])):
            before, after = items[:place], items[place + 1 :]
            return either(*(_found([*before, *each, *after], head, tail) for each in alternatives))
    return sequence(head, *starmap(_item, items), tail)


def _alternatives(kind: Any, value: Any) -> list[list[Any]]:
    """Of a group or a choice; of anything else none."""
    match str(kind):
        case "BRANCH":
            return [list(branch) for branch in value[1]]
        case "SUBPATTERN" if not value[1] and not value[2]:
            return [list(value[3])]
    return []


def _has_anchor(kind: Any, value: Any) -> bool:
    return str(kind) == "AT" or any(_has_anchor(*item) for each in _alternatives(kind, value) for item in each)


def _item(kind: Any, value: Any) -> Language:
    match str(kind):
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "CATEGORY":
            return chars(_ranges(str(kind), value))
        case "BRANCH":
            return either(*(sequence(*starmap(_item, branch)) for branch in value[1]))
        case "SUBPATTERN" if not value[1] and not value[2]:
            return sequence(*starmap(_item, value[3]))
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, part = value
            bound = None if int(most) > 2**31 else int(most)
            if max(least, bound or 0) > MAX_REPEAT:
                raise ValueError(f"the pattern repeats more than {MAX_REPEAT} times")
            return repeated(sequence(*starmap(_item, part)), least, bound)
    raise ValueError(f"the pattern has {_UNKNOWN.get(str(kind), 'a part')}, which cannot be held")


def _ranges(kind: str, value: Any) -> Iterator[Range]:
    match kind:
        case "LITERAL":
            yield value, value
        case "NOT_LITERAL":
            yield from inverted([(value, value)])
        case "ANY":
            yield from inverted(_LINE_ENDS)
        case "RANGE":
            yield value
        case "CATEGORY":
            name = str(value).removeprefix("CATEGORY_")
            known = _CATEGORIES[name.removeprefix("NOT_")]
            yield from inverted(known) if name.startswith("NOT_") else known
        case "IN":
            negated = str(value[0][0]) == "NEGATE"
            found = [span for each in value[negated:] for span in _ranges(str(each[0]), each[1])]
            yield from inverted(found) if negated else found
