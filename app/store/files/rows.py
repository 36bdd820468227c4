"""Files as their rows have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.protocol.types import Json


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file, without its bytes."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None

    def as_object(self) -> Json:
        """The file as clients see it, with times in epoch seconds."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at.timestamp()),
            "expires_at": None if self.expires_at is None else int(self.expires_at.timestamp()),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, slots=True)
class NewFile:
    """A client's fields of a new file."""

    id: str
    filename: str
    purpose: str
    expires_after_seconds: int | None
    """Seconds from the file's creation to its expiry; None: it stays until it is deleted."""
