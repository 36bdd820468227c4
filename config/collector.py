"""Python's garbage collector in processes that run for long."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 10, 10)
"""CPython's are (700, 10, 10): a collection of young objects every few events."""


def freeze_gc() -> None:
    """Exempts all present objects from collection, and collects new ones less often. Call it once all is loaded.

    An engine has a million objects that stay. Running responses make many short-lived objects, hardly any of them in
    cycles. The plain way is not to call this function.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # CPython starts a full collection at 25 % growth; this second call resets the baseline
    gc.set_threshold(*THRESHOLDS)
