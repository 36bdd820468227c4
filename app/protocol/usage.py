"""How many tokens a response took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
        return cls(
            input_tokens=sum(turn.input_tokens for turn in turns),
            cached_tokens=sum(turn.cached_tokens for turn in turns),
            output_tokens=sum(turn.output_tokens for turn in turns),
            reasoning_tokens=sum(turn.reasoning_tokens for turn in turns),
            tool_output_tokens=sum(turn.tool_output_tokens for turn in turns),
            turns=tuple(turns) if len(turns) > 1 else (),
        )
