"""The error of sandboxes."""

from __future__ import annotations


class SandboxError(Exception):
    """There is no sandbox, or none that isolates. The message is one line, for operators."""
