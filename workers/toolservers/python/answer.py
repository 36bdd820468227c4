"""How one call ended, and the answers of an interpreter.

Untrusted code can forge answers, so they are checked like any other input."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator


class StopReason(Enum):
    """Why the sandbox stopped a call."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU = "cpu"
    OUTPUT = "output"
    CANCELLED = "cancelled"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """`result` is the value of the last expression as text, `error` a traceback; `images` are PNG in base64."""

    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    error: str | None = None
    images: tuple[str, ...] = ()
    killed: StopReason | None = None
    """Why the call was stopped; None if it ended by itself."""
    state_lost: bool = False
    """The interpreter is gone, with every name; the next call gets a fresh one."""


MAX_IMAGES = 16
MAX_IMAGE_BYTES = 3 * 1024 * 1024
"""Bytes of base64 of all images together. kernel.py sends less."""
MAX_INVALID_LINES = 100
"""Invalid lines in one call, before it is stopped."""


class Answer(BaseModel):
    """One line of kernel.py."""

    model_config = ConfigDict(strict=True, frozen=True)

    id: int
    result: str | None = None
    error: str | None = None
    images: list[str] = Field([], max_length=MAX_IMAGES)

    @field_validator("images")
    @classmethod
    def _base64(cls, images: list[str]) -> list[str]:
        for image in images:
            binascii.a2b_base64(image, strict_mode=True)
        return images


class AnswerReader:
    """Splits the stream of answers into lines.

    Each valid answer goes to `on_answer`. Beyond `max_bytes`, or MAX_INVALID_LINES, `on_flood` is called instead.
    """

    def __init__(self, max_bytes: int, on_answer: Callable[[Answer], None], on_flood: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._on_answer = on_answer
        self._on_flood = on_flood
        self._line = bytearray()
        self._bytes = self._invalid_lines = 0

    def reset(self) -> None:
        """Starts a new call: forgets everything that was read before."""
        self._line.clear()
        self._bytes = self._invalid_lines = 0

    def add(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._max_bytes or self._invalid_lines > MAX_INVALID_LINES:
            self._on_flood()
            return
        first, *more = data.split(b"\n")
        self._line += first
        for piece in more:
            self._end_line()
            self._line += piece

    def _end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._invalid_lines > MAX_INVALID_LINES:
            return
        try:
            self._on_answer(Answer.model_validate_json(line))
        except (ValidationError, binascii.Error):
            self._invalid_lines += 1
