"""Runs the long form on an installation of its own: `python -m tests.e2e.acceptance [demo|scripted]`."""

from __future__ import annotations

import sys

from tests.e2e.acceptance.installed import accept

if __name__ == "__main__":
    accept(sys.argv[1] if len(sys.argv) > 1 else "demo", lines=2000, windowed=200, tell=print)
