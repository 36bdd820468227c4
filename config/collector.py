"""Python's garbage collector in processes that run for long."""

from __future__ import annotations

import gc


def freeze_gc() -> None:
    """Exempts all present objects from collection, and turns it on. Call it once everything is loaded.

    An engine has a million objects that stay, and a full collection would look at each of them. The plain way is not
    to call this function (docs/decisions/gc-freeze.md).
    """
    gc.collect()
    gc.freeze()
    # CPython starts a full collection at 25 % growth. This second call resets the baseline: without it old garbage
    # would stay until the process had grown by a quarter of the engine.
    gc.collect()
    gc.enable()
