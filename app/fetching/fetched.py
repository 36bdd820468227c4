"""What a server answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a server answered."""

    url: str
    """The URL after redirects."""
    headers: Mapping[str, str]
    """Their names in small letters."""
    body: bytes

    status: int = 200

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")
