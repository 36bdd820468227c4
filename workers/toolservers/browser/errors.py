"""The error of the browser tool."""

from __future__ import annotations

from typing import Any


class BrowserError(Exception):
    """A call failed; the message is one sentence for the model. `action` is the action that failed, if known."""

    def __init__(self, message: str, action: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.action = action
