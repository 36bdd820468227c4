"""Rules of xgrammar's EBNF: those of all JSON, and those of sets of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from workers.engine.json_grammar import class_of, in_json_string
from workers.engine.schemas import numbers
from workers.engine.schemas.documents import NoSchema
from workers.engine.schemas.languages import (
    ANY_CHAR,
    ANYTHING,
    Automaton,
    Language,
    automaton,
    both,
    containing,
    has_empty,
    is_empty,
    literal,
    without,
)

MAX_BLANKS = 8
"""Characters of white space between two tokens of JSON: enough for some indentation. A small model could otherwise
write blanks for ever."""
_HEX = "[0-9a-fA-F]"
_BASE = {
    "w": rf"[ \n\r\t]{{0,{MAX_BLANKS}}}",
    "escape": rf'["\\/bfnrt] | "u" ([0-9abcefABCEF] {_HEX} {_HEX} {_HEX} | [dD] [0-7] {_HEX} {_HEX} | '
    rf'[dD] [89abAB] {_HEX} {_HEX} "\\u" [dD] [c-fC-F] {_HEX} {_HEX})',
    "string": r'"\"" rest',
    "rest": r'"\"" | [^"\\\x00-\x1f] rest | "\\" escape rest',
    "number": r'"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+\-]? [0-9]+)?',
    "array": '"[" w ("]" | any (w "," w any)* w "]")',
    "object": '"{" w ("}" | member (w "," w member)* w "}")',
    "member": 'string w ":" w any',
    "any": 'string | number | "true" | "false" | "null" | array | object',
}
_STRING_ENDS = r"(=(w [,}\]:]))"
"""The text behind a string: xgrammar then knows in advance which tokens may end one."""

Alternative = tuple[str, frozenset[str]]
"""The rule's text, and the rules that it needs."""


class Rules:
    """`excludes`: what no string and no name of a property may contain."""

    def __init__(self, excludes: Iterable[str] = ()) -> None:
        self._rules = {name: [joined(*text.split(" "))] for name, text in _BASE.items()}
        self._texts: dict[tuple[Language, bool], str] = {}
        self.strings = both(*(without(containing(literal(each))) for each in excludes))
        if self.strings is not ANYTHING:
            self._rules["string"] = [joined(r'"\""', self.language(self.strings, in_json=True))]

    def rule(self, alternatives: Iterable[Alternative], name: str | None = None) -> str | None:
        """Returns the rule's name; None if it has no alternative."""
        name = name or f"v{len(self._rules)}_"
        self._rules[name] = list(alternatives)
        return name if self._rules[name] else None

    def scalar(self, kind: str, language: Language) -> Iterator[Alternative]:
        language = both(language, self.strings) if kind == "string" else language
        if is_empty(language):
            return
        if kind == "string":
            if language is self.strings:
                yield joined("string")
            else:
                yield joined(r'"\""', self.language(language, in_json=True))
        elif language is numbers.DECIMAL:
            yield joined("number")
        elif kind == "number" and is_empty(both(language, without(numbers.INTEGER))):
            yield joined(self.language(both(language, numbers.DIGITS)))
        else:
            yield joined(self.language(language))

    def language(self, language: Language, *, in_json: bool = False) -> str:
        """The rule of these texts; `in_json`: as the characters of a JSON string, and the quote that ends it."""
        if (language, in_json) not in self._texts:
            states = automaton(language)
            for state in states:
                rest = in_json and state is ANYTHING
                self._texts.setdefault(
                    (state, in_json), "rest" if rest else f"{'q' if in_json else 't'}{len(self._texts)}"
                )
            for state in states:
                if (name := self._texts[state, in_json]) not in self._rules:
                    self._rules[name] = list(self._state(state, states, in_json=in_json))
        return self._texts[language, in_json]

    def _state(self, state: Language, states: Automaton, *, in_json: bool) -> Iterator[Alternative]:
        end = r'"\""' if in_json else '""'
        if has_empty(state):
            yield joined(end)
        for follower, ranges in states[state].items():
            if in_json and ranges == ANY_CHAR.args[0]:  # also written with escapes that nobody needs
                yield joined(r'[^"\\\x00-\x1f]', self._texts[follower, True])
                yield joined(r'"\\"', "escape", self._texts[follower, True])
                continue
            lexemes = [class_of(ranges)]
            while not has_empty(follower) and len(states[follower]) == 1:  # a rule for each character would be dear
                [(follower, ranges)] = states[follower].items()
                lexemes.append(class_of(ranges))
            text = " ".join(map(in_json_string, lexemes) if in_json else lexemes)
            ends = has_empty(follower) and not states[follower]
            yield joined(text, end if ends else self._texts[follower, in_json])

    def printed(self, names: Sequence[str]) -> str:
        """These rules, and those that they use. Raises NoSchema if one of them has no values."""
        rules = self._productive()
        if not rules.keys() >= set(names):
            raise NoSchema("#", "no value can match it")
        used, todo = dict.fromkeys(names), list(names)
        while todo:
            fresh = {each for _, uses in rules[todo.pop()] for each in uses if each not in used}
            used |= dict.fromkeys(fresh)
            todo += fresh
        texts = {name: " | ".join(text for text, _ in rules[name]) for name in used}
        return "\n".join(
            f"{name} ::= ({text}) {_STRING_ENDS}" if name[0] in "rq" and name != "root" else f"{name} ::= {text}"
            for name, text in texts.items()
        )

    def _productive(self) -> dict[str, list[Alternative]]:
        """The rules without alternatives that never end."""
        rules = self._rules
        good, todo = set(_BASE), list(rules)
        users: dict[str, list[str]] = {}
        for name, alternatives in rules.items():
            for each in {use for _, uses in alternatives for use in uses}:
                users.setdefault(each, []).append(name)
        while todo:
            name = todo.pop()
            if name not in good and any(uses <= good for _, uses in rules[name]):
                good.add(name)
                todo += users.get(name, ())
        return {name: [one for one in each if one[1] <= good] for name, each in rules.items() if name in good}


def joined(*parts: str, uses: Iterable[str] = ()) -> Alternative:
    return " ".join(filter(None, parts)), frozenset([*(part for part in parts if part.isidentifier()), "w", *uses])
