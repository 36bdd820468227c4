"""What a sandbox's owner catches."""

from __future__ import annotations


class SandboxError(Exception):
    """There is no sandbox, or none that holds; the message is one line, for operators."""
