"""Sets of texts that combine (and, or, not), each as an automaton: by derivatives of regular expressions.

Equal languages that are built alike are one object, so a state of an automaton is a language.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from workers.engine.json_grammar import MAX_CODE, Range, inverted

MAX_STATES = 2_000
"""States of one automaton: a grammar has a rule for each."""
Step = Callable[[Any, str], Any]


class Language:
    """Made by the functions below only. `kind` says what `args` are."""

    __slots__ = ("args", "kind")

    def __init__(self, kind: str, *args: Any) -> None:
        self.kind = kind
        self.args = args


@cache
def _made(kind: str, *args: Hashable) -> Language:
    return Language(kind, *args)


NOTHING = _made("chars", ())
EMPTY = _made("empty")
ANYTHING = _made("not", NOTHING)


def chars(ranges: Iterable[Range]) -> Language:
    """One character of these."""
    return _made("chars", tuple(inverted(list(inverted(ranges)))))


ANY_CHAR = chars([(0, MAX_CODE)])


def literal(text: str) -> Language:
    return sequence(*(chars([(ord(each), ord(each))]) for each in text))


def sequence(*parts: Language) -> Language:
    made = EMPTY
    for part in reversed(parts):
        if part is NOTHING or made is NOTHING:
            return NOTHING
        if made is EMPTY:
            made = part
        elif part.kind == "sequence":
            made = sequence(part.args[0], sequence(part.args[1], made))
        elif part is not EMPTY:
            made = _made("sequence", part, made)
    return made


def either(*parts: Language) -> Language:
    return _set("either", parts, neutral=NOTHING, absorbing=ANYTHING)


def both(*parts: Language) -> Language:
    return _set("both", parts, neutral=ANYTHING, absorbing=NOTHING)


def without(part: Language) -> Language:
    """All other texts."""
    found: Language = part.args[0] if part.kind == "not" else _made("not", part)
    return found


def repeated(part: Language, least: int = 0, most: int | None = None) -> Language:
    if most == 0 or part is EMPTY:
        return EMPTY
    if part is NOTHING:
        return EMPTY if least == 0 else NOTHING
    if least == 0 and most is None and part is ANY_CHAR:
        return ANYTHING
    return part if least == most == 1 else _made("repeated", part, least, most)


def machine(step: Step, state: Hashable) -> Language:
    """The texts that `step` takes from `state`, character by character: it returns the next state, or None. With "" it
    returns whether the text may end. It knows digits and the point only."""
    return NOTHING if state is None else _made("machine", step, state)


def _set(kind: str, parts: Iterable[Language], *, neutral: Language, absorbing: Language) -> Language:
    found: dict[Language, None] = {}
    for part in parts:
        found.update(dict.fromkeys(part.args[0] if part.kind == kind else (part,)))
    found.pop(neutral, None)
    if absorbing in found or any(without(part) in found for part in found):
        return absorbing
    if len(found) < 2:
        return next(iter(found), neutral)
    return _made(kind, frozenset(found))


@cache
def has_empty(of: Language) -> bool:
    """Whether the empty text is one of them."""
    match of.kind, of.args:
        case "not", (part,):
            return not has_empty(part)
        case "either", (parts,):
            return any(map(has_empty, parts))
        case ("both", (parts,)) | ("sequence", parts):
            return all(map(has_empty, parts))
        case "repeated", (part, least, _):
            return least == 0 or has_empty(part)
        case "machine", (step, state):
            return bool(step(state, ""))
    return of is EMPTY


@cache
def after(of: Language, code: int) -> Language:
    """The texts that may follow this first character."""
    match of.kind, of.args:
        case "chars", (ranges,):
            return EMPTY if any(first <= code <= last for first, last in ranges) else NOTHING
        case "not", (part,):
            return without(after(part, code))
        case "either", (parts,):
            return either(*(after(part, code) for part in parts))
        case "both", (parts,):
            return both(*(after(part, code) for part in parts))
        case "sequence", (head, tail):
            first = sequence(after(head, code), tail)
            return either(first, after(tail, code)) if has_empty(head) else first
        case "repeated", (part, least, most):
            rest = repeated(part, max(least - 1, 0), None if most is None else most - 1)
            return sequence(after(part, code), rest)
        case "machine", (step, state):
            return machine(step, step(state, chr(code)))
    return NOTHING


@cache
def _edges(of: Language) -> frozenset[int]:
    """The characters at which the ranges of first characters that it treats alike begin."""
    match of.kind, of.args:
        case "chars", (ranges,):
            return frozenset(edge for first, last in ranges for edge in (first, last + 1))
        case "not", (part,):
            return _edges(part)
        case (("either" | "both"), (parts,)):
            return frozenset().union(*map(_edges, parts))
        case "sequence", (head, tail):
            return _edges(head) | _edges(tail) if has_empty(head) else _edges(head)
        case "repeated", (part, _, _):
            return _edges(part)
        case "machine", _:
            return frozenset(range(46, 59))
    return frozenset()


Automaton = dict[Language, dict[Language, tuple[Range, ...]]]
"""By state: the characters that lead to each next state. The first state is the language itself."""


@cache
def automaton(of: Language) -> Automaton:
    """Only states that lead to an end; none for an empty language. Raises ValueError if there are too many."""
    found: dict[Language, dict[Language, list[Range]]] = {}
    todo = [of]
    while todo:
        if (state := todo.pop()) in found:
            continue
        if len(found) == MAX_STATES:
            raise ValueError(f"its texts take more than {MAX_STATES} states")
        found[state] = {}
        for first, end in pairwise(sorted({0, MAX_CODE + 1} | {edge for edge in _edges(state) if edge <= MAX_CODE})):
            if (follower := after(state, first)) is not NOTHING:
                found[state].setdefault(follower, []).append((first, end - 1))
                todo.append(follower)
    useful = {state for state in found if has_empty(state)}
    sources: dict[Language, list[Language]] = {}
    for state, followers in found.items():
        for follower in followers:
            sources.setdefault(follower, []).append(state)
    todo = list(useful)
    while todo:
        fresh = set(sources.get(todo.pop(), ())) - useful
        useful |= fresh
        todo += fresh
    return {
        state: {each: chars(ranges).args[0] for each, ranges in followers.items() if each in useful}
        for state, followers in found.items()
        if state in useful
    }


def is_empty(of: Language) -> bool:
    return of is NOTHING or not automaton(of)


def matches(of: Language, text: str) -> bool:
    for each in text:
        of = after(of, ord(each))
    return has_empty(of)


def containing(part: Language) -> Language:
    return sequence(ANYTHING, part, ANYTHING)
