"""The error of a local start."""

from __future__ import annotations


class LocalError(Exception):
    """Longhaul cannot start, or go on, on this machine. The message is one line, for users."""
