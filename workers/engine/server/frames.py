"""The stream of vLLM's token route: from bytes to pieces of an answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

MAX_FRAME_BYTES = 2**24
"""Far above what a step has: 64 tokens with 20 log probabilities each take 100 KB."""
_DATA, _DONE = b"data:", b"[DONE]"


class BadFrame(Exception):
    """The server's stream cannot be read: it is none of vLLM's token route, or of another version."""


class ErrorFrame(Exception):
    """The server ended the request with an error, within the stream."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int | None


@dataclass(slots=True)
class Piece:
    """Tokens of an answer, as vLLM's CompletionOutput has them."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Mapping[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0


class Frames:
    """Reads one stream. The piece with the finish reason comes with the stream's end, where the usage is."""

    def __init__(self) -> None:
        self._rest = b""
        self._last: Piece | None = None
        self._cached = 0

    def feed(self, data: bytes) -> Piece | None:
        """What these bytes complete, as one piece. Raises BadFrame or ErrorFrame."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_FRAME_BYTES:
            raise BadFrame(f"it sends a line of more than {MAX_FRAME_BYTES} bytes")
        piece, is_done = Piece(), False
        for line in lines:
            if line.startswith(_DATA):
                content = line[len(_DATA) :].strip()
                is_done = content == _DONE
                if not is_done:
                    self._read(content, piece)
        if self._last is None and piece.finish_reason is not None:
            self._last = piece
        elif self._last is not None:
            self._last = _joined(self._last, piece)
        if self._last is None:
            return piece if piece.token_ids else None
        if not is_done:
            return None
        self._last.cached_tokens = self._cached
        return self._last

    def _read(self, content: bytes, piece: Piece) -> None:
        try:
            frame = orjson.loads(content)
            if "error" in frame:
                error = frame["error"]
                raise ErrorFrame(int(error.get("code") or 500), str(error.get("message", "")))
            if usage := frame.get("usage"):
                self._cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            for choice in frame["choices"]:
                piece.token_ids += map(int, choice["token_ids"] or ())
                if found := choice.get("logprobs"):
                    piece.logprobs += map(_logprobs, found["content"])
                piece.finish_reason = choice["finish_reason"] or piece.finish_reason
                piece.stop_reason = choice.get("stop_reason")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFrame(f"its frames are none of vLLM's token route ({type(error).__name__})") from None


def _joined(first: Piece, more: Piece) -> Piece:
    return Piece(
        first.token_ids + more.token_ids,
        [*first.logprobs, *more.logprobs],
        more.finish_reason or first.finish_reason,
        first.stop_reason if more.finish_reason is None else more.stop_reason,
    )


def _logprobs(entry: Mapping[str, Any]) -> Mapping[int, Logprob]:
    """The chosen token's, and those of the likeliest."""
    entries: Iterable[Mapping[str, Any]] = [*entry["top_logprobs"], entry]
    return {each["token_id"]: Logprob(each["logprob"], each.get("rank")) for each in entries}
