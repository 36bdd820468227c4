"""`longhaul responses`: see responses of all projects, and cancel and retry many at once."""

from __future__ import annotations

from app.local.commands.responses.group import commands

__all__ = ["commands"]
