"""The error of the browser tool."""

from __future__ import annotations

from typing import Any


class BrowserError(Exception):
    """A call failed; the message is one sentence for the model."""

    action: dict[str, Any] | None = None
    """The action that failed, if it is known."""
