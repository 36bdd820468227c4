"""The steps of all histograms.

A quantile is estimated within the step that it falls into: it is right to the ratio of two steps, which is 1.5 at most.
"""

from __future__ import annotations

DAY_SECONDS = 86400.0
_ROUND = (1, 1.5, 2, 3, 4, 5, 7)
"""The steps of one power of ten."""


def _steps(first: int, last: float) -> tuple[float, ...]:
    """The steps from that power of ten on, and `last`."""
    exponents = range(first, len(str(int(last))))
    steps = (float(f"{number}e{exponent}") for exponent in exponents for number in _ROUND)
    return (*(each for each in steps if each < last), last)


LONG = _steps(-2, DAY_SECONDS)
"""Seconds of what may last a day."""
SHORT = _steps(-3, 600.0)
"""Seconds of what is over soon."""
TOKENS = _steps(-3, DAY_SECONDS)
"""Seconds between two tokens."""
CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Chunks of one commit."""
