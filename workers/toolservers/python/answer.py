"""What an interpreter says of a cell: a stranger's word, so checked like any other input."""

from __future__ import annotations

import binascii
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

MOST_IMAGES = 16
MOST_IMAGE_BYTES = 3 * 1024 * 1024
"""Base64 of all images together, with room to spare; kernel.py sends less."""
MOST_NONSENSE = 100
"""Lines that are no answer, in one call."""


class Answer(BaseModel):
    """One line of kernel.py."""

    model_config = ConfigDict(strict=True, frozen=True)

    id: int
    result: str | None = None
    error: str | None = None
    images: list[str] = Field([], max_length=MOST_IMAGES)

    @field_validator("images")
    @classmethod
    def _base64(cls, images: list[str]) -> list[str]:
        for image in images:
            binascii.a2b_base64(image, strict_mode=True)
        return images


class Answers:
    """Cuts the stream of answers into lines. `too_much` is called, and all else ignored, where it is a flood."""

    def __init__(self, longest: int, take: Callable[[Answer], None], too_much: Callable[[], None]) -> None:
        self._longest = longest
        self._take = take
        self._too_much = too_much
        self._line = bytearray()
        self._bytes = self._nonsense = 0

    def expect(self) -> None:
        """A new call: what came before is forgotten."""
        self._line.clear()
        self._bytes = self._nonsense = 0

    def add(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._longest or self._nonsense > MOST_NONSENSE:
            self._too_much()
            return
        first, *more = data.split(b"\n")
        self._line += first
        for piece in more:
            self._end_line()
            self._line += piece

    def _end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._nonsense > MOST_NONSENSE:
            return
        try:
            self._take(Answer.model_validate_json(line))
        except (ValidationError, binascii.Error):
            self._nonsense += 1
