"""How many tokens a response took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "tool_output_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one response, or of one of its turns."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    tool_output_tokens: int = 0
    """The input tokens that are results of hosted tools."""
    turns: tuple[Usage, ...] = ()
    """The usage of each turn, if there was more than one."""

    @classmethod
    def of(cls, turns: Sequence[Usage]) -> Usage:
        """Returns the sum over `turns`; it keeps them if there is more than one."""
        sums = {name: sum(getattr(turn, name) for turn in turns) for name in _COUNTS}
        return cls(**sums, turns=tuple(turns) if len(turns) > 1 else ())

    def counts(self) -> dict[str, int]:
        """Its numbers by their names, without those of its turns."""
        return {name: getattr(self, name) for name in _COUNTS}
