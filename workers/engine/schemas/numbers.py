"""Sets of numbers, as the languages of how they are written: without exponent, since digits can be compared.

Each has all ways to write a number (1, 1.0), so that they combine.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from workers.engine.schemas.languages import Language, both, chars, either, literal, machine, repeated, sequence

MAX_DIVISOR = 1_000
_DIGIT = chars([(48, 57)])
_WHOLE = either(literal("0"), sequence(chars([(49, 57)]), repeated(_DIGIT)))
_POINT = literal(".")
_ZEROS = either(literal(""), sequence(_POINT, repeated(literal("0"), 1)))
_MINUS = either(literal(""), literal("-"))
_MAGNITUDE = sequence(_WHOLE, either(literal(""), sequence(_POINT, repeated(_DIGIT, 1))))
DECIMAL = sequence(_MINUS, _MAGNITUDE)
"""Every number."""
INTEGER = sequence(_MINUS, _WHOLE, _ZEROS)
DIGITS = sequence(_MINUS, _WHOLE)
"""Integers as they are written usually."""

_Comparison = tuple[str, str, int, int]
"""The digits before and after the bound's point; how many digits were read, negative behind the point; and how those
compare (-1, 0, 1)."""


def equal_to(value: Any) -> Language:
    whole, fraction = _split(_decimal(value))
    sign = literal("-") if _decimal(value) < 0 else either(*([literal("")] + [literal("-")] * (_decimal(value) == 0)))
    zeros = repeated(literal("0"))
    tail = sequence(literal("." + fraction), zeros) if fraction else either(literal(""), sequence(literal(".0"), zeros))
    return sequence(sign, literal(whole), tail)


def held(keywords: Mapping[str, Any]) -> list[Language]:
    """What bounds and `multipleOf` among these keywords of a schema hold numbers to. Raises ValueError."""
    made = []
    for keyword, sign, strict in (
        ("minimum", 1, False),
        ("exclusiveMinimum", 1, True),
        ("maximum", -1, False),
        ("exclusiveMaximum", -1, True),
    ):
        if keyword in keywords:
            made.append(_beyond(_decimal(keywords[keyword]), sign, strict=strict))
    if "multipleOf" in keywords:
        made.append(_multiples(_decimal(keywords["multipleOf"])))
    return made


def _beyond(bound: Decimal, sign: int, *, strict: bool) -> Language:
    """The numbers above the bound, or below it if `sign` is -1."""
    own, other = (literal(""), literal("-")) if sign == 1 else (literal("-"), literal(""))
    whole, fraction = _split(bound)
    if (bound >= 0) == (sign == 1) or bound == 0:
        wanted = {1} if strict else {0, 1}
        found = sequence(own, _magnitudes(whole, fraction, wanted))
        return found if bound or strict else either(found, equal_to(0))
    wanted = {-1} if strict else {-1, 0}
    return either(sequence(own, _MAGNITUDE), sequence(other, _magnitudes(whole, fraction, wanted)))


def _magnitudes(whole: str, fraction: str, wanted: set[int]) -> Language:
    def step(state: _Comparison | None, char: str) -> Any:
        read, found, behind = state  # type: ignore[misc]
        if not char:
            if not behind and read != len(whole):
                return (1 if read > len(whole) else -1) in wanted
            return (found or -bool(fraction[max(behind - 1, 0) :])) in wanted
        if char == ".":
            if behind:
                return None
            return read, found if read == len(whole) else (1 if read > len(whole) else -1), 1
        if not char.isdigit():
            return None
        if behind:
            against = fraction[behind - 1] if behind <= len(fraction) else "0"
            return read, found or (char > against) - (char < against), min(behind + 1, len(fraction) + 1)
        against = whole[read] if read < len(whole) else "0"
        return min(read + 1, len(whole) + 1), found or (char > against) - (char < against), 0

    return both(_MAGNITUDE, machine(step, (0, 0, 0)))


def _multiples(of: Decimal) -> Language:
    whole, fraction = _split(of)
    places, divisor = len(fraction), int(whole + fraction)
    if divisor > MAX_DIVISOR:
        raise ValueError(f"multipleOf may have a numerator of {MAX_DIVISOR} at most")

    def step(state: tuple[int, int, bool], char: str) -> Any:
        rest, left, behind = state
        if not char:
            return rest * 10**left % divisor == 0
        if char == ".":
            return None if behind else (rest, left, True)
        if behind and not left:
            return (rest, 0, True) if char == "0" else None
        return ((rest * 10 + int(char)) % divisor, left - behind, behind) if char.isdigit() else None

    return both(DECIMAL, sequence(_MINUS, machine(step, (0, places, False))))


def _decimal(value: Any) -> Decimal:
    found = Decimal(str(value))
    if not found.is_finite():
        raise ValueError("its numbers must be finite")
    return found


def _split(value: Decimal) -> tuple[str, str]:
    """The digits before and after the point."""
    whole, _, fraction = f"{value.copy_abs():f}".partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")
