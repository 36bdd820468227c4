"""Lines whose check failed in a way that nobody foresaw."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from app.protocol.text import type_and_places

log = logging.getLogger("longhaul.batches")

BROKEN = "The request could not be checked."
"""What the client is told of such a line."""


@dataclass(slots=True)
class BrokenLines:
    """Broken lines of one batch: the first is logged, because the others mostly fail for the same reason."""

    has_any: bool = False

    def note(self, batch_id: str, line: int, error: Exception) -> None:
        if not self.has_any:
            log.error("%s: line %d cannot be checked: %s", batch_id, line, type_and_places(error))
        self.has_any = True
