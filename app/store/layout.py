"""The layout of what a response's row and log hold: request, events, tokens, steps and output.

A row's `layout` is that of the newest process that may have written to it: the API that accepted it, or a worker that
claimed it. A worker claims only rows of a layout it knows. An older worker leaves the others to newer ones.
"""

from __future__ import annotations

LAYOUT = 1
"""This version's layout."""
