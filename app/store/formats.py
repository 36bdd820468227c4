"""The format of what a response's row and log hold: request, events, tokens, steps and output.

A row's `format` is that of the newest process that may have written to it: the API that accepted it, or a worker that
claimed it. A worker claims only rows of a format it knows. An older worker leaves the others to newer ones.
"""

from __future__ import annotations

FORMAT = 1
"""This version's format."""
