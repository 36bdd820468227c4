"""The error of sandboxes."""

from __future__ import annotations

from workers.toolservers.settings import StartError


class SandboxError(StartError):
    """There is no sandbox, or none that isolates. The message is one line, for operators at a start, and for the model
    later."""
