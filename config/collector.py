"""Python's garbage collector, for processes that serve for long."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 10, 10)
"""Python's own are (700, 10, 10): a look at everything young for every few events."""


def settle() -> None:
    """Call it once all is loaded: what is there now (an engine: a million objects) is never looked at again, and what
    comes less often. Running responses make and forget many objects, hardly any of them in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # Python looks at what is old once a quarter of what it found there last is new: of nothing, from here
    gc.set_threshold(*THRESHOLDS)
