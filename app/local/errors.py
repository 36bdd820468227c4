"""What stops a local start."""

from __future__ import annotations


class LocalError(Exception):
    """Longhaul cannot start, or go on, on this machine; the message is one line, for users."""
