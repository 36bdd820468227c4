"""Regular expressions of ECMAScript, which JSON schemas use, as languages.

They are read as a browser reads them (ECMA-262, with annex B): `x{,3}` is five characters. What other engines know
besides (`(?P<n>`, `(?#`, `\\A`, `a*+`), and what needs more than a language (lookarounds, back references), is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from workers.engine.json_grammar import Range, inverted
from workers.engine.schemas.languages import ANYTHING, EMPTY, Language, chars, either, repeated, sequence

MAX_REPEAT = 10_000
MAX_GROUPS = 100
"""Groups within each other."""
_DIGIT, _WORD = [(48, 57)], [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE = [(9, 13), (32, 32), (160, 160), (5760, 5760), (8192, 8202), (8232, 8233), (8239, 8239), (8287, 8287)]
_SPACE += [(12288, 12288), (65279, 65279)]
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_LINE_ENDS = [(10, 10), (13, 13), (8232, 8233)]
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_CODE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|"
    r"u\{([0-9a-fA-F]{1,6})\}|c([A-Za-z])|(0)(?![0-9])|([tnvfr])|([^A-Za-z0-9]))",
    re.DOTALL,
)
"""An escape of one character."""
_BRACES = re.compile(r"\{(\d+)(,(\d*))?\}")
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_GROUP = re.compile(r"\((?:\?(?::|<([A-Za-z_$][\w$]*)>))?(?!\?)")
_LOOKAROUND = re.compile(r"\(\?<?[=!]")


@dataclass(frozen=True, slots=True)
class _Part:
    """An anchor, a group with its alternatives, or what is matched as it is."""

    anchor: str = ""
    alternatives: tuple[tuple[_Part, ...], ...] = ()
    language: Language = EMPTY

    @property
    def has_anchor(self) -> bool:
        return bool(self.anchor) or any(part.has_anchor for each in self.alternatives for part in each)


@cache
def pattern(text: str) -> Language:
    """The texts in which this regular expression finds something. Raises ValueError for what it cannot do."""
    reader = _Reader(text)
    alternatives = reader.alternatives()
    if reader.at < len(text):
        raise ValueError("the pattern cannot be read: a ')' has no '('")
    return _found([_Part(alternatives=alternatives)], ANYTHING, ANYTHING)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def alternatives(self) -> tuple[tuple[_Part, ...], ...]:
        self._depth += 1
        if self._depth > MAX_GROUPS:
            raise ValueError(f"the pattern has more than {MAX_GROUPS} groups within each other")
        found: list[list[_Part]] = [[]]
        while self.at < len(self._text) and self._text[self.at] != ")":
            if self._taken("|"):
                found.append([])
            else:
                found[-1].append(self._part())
        self._depth -= 1
        return tuple(map(tuple, found))

    def _part(self) -> _Part:
        char = self._text[self.at]
        if char in "^$":
            self.at += 1
            if self._bounds() is not None:
                raise ValueError("the pattern cannot be read: nothing to repeat")
            return _Part(anchor=char)
        made = self._group() if char == "(" else _Part(language=self._one())
        bounds = self._bounds()
        if bounds is None:
            return made
        least, most = bounds
        if most is not None and most < least:
            raise ValueError("the pattern cannot be read: a repeat's bounds are in the wrong order")
        if max(least, most or 0) > MAX_REPEAT:
            raise ValueError(f"the pattern repeats more than {MAX_REPEAT} times")
        self._taken("?")  # a lazy repeat has the same texts
        if self._taken("+"):
            raise ValueError("the pattern has a possessive repeat, which ECMAScript has not")
        if self._bounds() is not None:
            raise ValueError("the pattern cannot be read: nothing to repeat")
        return _Part(language=repeated(_language(made), least, most))

    def _bounds(self) -> tuple[int, int | None] | None:
        """The repeat that stands here; None: there is none."""
        if self.at < len(self._text) and (bounds := _BOUNDS.get(self._text[self.at])):
            self.at += 1
            return bounds
        if (found := _BRACES.match(self._text, self.at)) is None:
            return None
        self.at = found.end()
        least, most = int(found[1][:9]), found[3]
        return least, least if found[2] is None else int(most[:9]) if most else None

    def _group(self) -> _Part:
        if _LOOKAROUND.match(self._text, self.at):
            raise ValueError("the pattern has a lookaround, which cannot be held")
        if (found := _GROUP.match(self._text, self.at)) is None:
            raise ValueError("the pattern has a group with flags, or one that ECMAScript has not")
        self.at = found.end()
        made = _Part(alternatives=self.alternatives())
        if not self._taken(")"):
            raise ValueError("the pattern cannot be read: a '(' has no ')'")
        return made

    def _one(self) -> Language:
        """One character, or a class of them."""
        char = self._text[self.at]
        if char == "\\":
            return chars(self._escape(in_class=False))
        self.at += 1
        if char == "[":
            return chars(self._class())
        if char in "*+?" or (char == "{" and _BRACES.match(self._text, self.at - 1)):
            raise ValueError("the pattern cannot be read: nothing to repeat")
        return chars(inverted(_LINE_ENDS) if char == "." else [(ord(char), ord(char))])

    def _class(self) -> Iterator[Range]:
        negated = self._taken("^")
        found: list[Range] = []
        while not self._taken("]"):
            first = self._member()
            dash = self._text.startswith("-", self.at) and not self._text.startswith("-]", self.at)
            if not dash:
                found += first
                continue
            self.at += 1
            last = self._member()
            if len(first) > 1 or len(last) > 1 or first[0][0] != first[0][1] or last[0][0] != last[0][1]:
                found += [*first, (45, 45), *last]  # a class is no end of a range: the dash is a dash
            elif first[0][0] > last[0][0]:
                raise ValueError("the pattern cannot be read: a range of characters is in the wrong order")
            else:
                found.append((first[0][0], last[0][0]))
        return inverted(found) if negated else iter(found)

    def _member(self) -> list[Range]:
        if self.at >= len(self._text):
            raise ValueError("the pattern cannot be read: a '[' has no ']'")
        if self._text[self.at] == "\\":
            return self._escape(in_class=True)
        self.at += 1
        return [(ord(self._text[self.at - 1]), ord(self._text[self.at - 1]))]

    def _escape(self, *, in_class: bool) -> list[Range]:
        name = self._text[self.at + 1 : self.at + 2]
        if name and name.lower() in _CLASSES:
            self.at += 2
            known = _CLASSES[name.lower()]
            return list(known if name.islower() else inverted(known))
        if in_class and name == "b":
            self.at += 2
            return [(8, 8)]
        if (found := _CODE.match(self._text, self.at)) is None:
            raise ValueError(f"the pattern has '\\{name}', which {_UNKNOWN.get(name, 'ECMAScript has not')}")
        self.at = found.end()
        code = _code(found)
        if code > 0x10FFFF:
            raise ValueError("the pattern cannot be read: no character has such a number")
        return [(code, code)]

    def _taken(self, char: str) -> bool:
        is_there = self._text.startswith(char, self.at)
        self.at += is_there
        return is_there


_UNKNOWN = dict.fromkeys("bBk123456789pP", "cannot be held")


def _code(escape: re.Match[str]) -> int:
    byte, high, low, unit, point, control, zero, named, plain = escape.groups()
    if high:
        return int(0x10000 + (int(high, 16) - 0xD800) * 1024 + int(low, 16) - 0xDC00)
    if control:
        return ord(control) % 32
    if number := byte or unit or point or zero:
        return int(number, 16)
    return _CONTROLS[named] if named else ord(plain)


def _found(parts: list[_Part], head: Language, tail: Language) -> Language:
    """A pattern that is searched for, not matched as a whole: `head` may stand before it, and `tail` after it.

    Anchors may stand at both ends of each alternative.
    """
    while parts and parts[0].anchor == "^":
        head, parts = EMPTY, parts[1:]
    while parts and parts[-1].anchor == "$":
        tail, parts = EMPTY, parts[:-1]
    for place in {0, len(parts) - 1} if parts else ():
        if parts[place].alternatives and parts[place].has_anchor:
            before, after = parts[:place], parts[place + 1 :]
            return either(*(_found([*before, *each, *after], head, tail) for each in parts[place].alternatives))
    return sequence(head, *map(_language, parts), tail)


def _language(part: _Part) -> Language:
    if part.anchor:
        raise ValueError("the pattern has an anchor inside, which cannot be held")
    if part.alternatives:
        return either(*(sequence(*map(_language, each)) for each in part.alternatives))
    return part.language
