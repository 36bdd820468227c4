"""The stream of vLLM's token route: from bytes to pieces of an answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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

    def add(self, more: Piece) -> None:
        self.token_ids += more.token_ids
        self.logprobs += more.logprobs
        self.cached_tokens = more.cached_tokens or self.cached_tokens
        if more.finish_reason is not None:
            self.finish_reason, self.stop_reason = more.finish_reason, more.stop_reason


class Frames:
    """Reads one stream. The piece with the finish reason comes with the stream's end, where the usage is."""

    def __init__(self) -> None:
        self._rest = b""
        self._piece = Piece()

    def feed(self, data: bytes) -> Iterator[Piece]:
        """What these bytes complete, as one piece at most. Then raises BadFrame or ErrorFrame, if one came behind it.

        Behind the finish reason no error counts: the answer is whole.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        contents = [line[len(_DATA) :].strip() for line in lines if line.startswith(_DATA)]
        error: BadFrame | ErrorFrame | None = None
        try:
            for content in contents:
                if content != _DONE:
                    self._piece.add(_piece_of(content))
            if len(self._rest) > MAX_FRAME_BYTES:
                raise BadFrame(f"it sends a line of more than {MAX_FRAME_BYTES} bytes")
        except (BadFrame, ErrorFrame) as found:
            error = found
        if self._piece.finish_reason is None:
            piece, self._piece = self._piece, Piece()
            if piece.token_ids:
                yield piece
            if error is not None:
                raise error
        elif error is not None or _DONE in contents:
            yield self._piece


def _piece_of(content: bytes) -> Piece:
    """Reads one frame."""
    piece = Piece()
    try:
        frame = orjson.loads(content)
        if "error" in frame:
            error = frame["error"]
            raise ErrorFrame(int(error.get("code") or 500), str(error.get("message", "")))
        if usage := frame.get("usage"):
            piece.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        for choice in frame["choices"]:
            piece.token_ids += map(int, choice["token_ids"] or ())
            if found := choice.get("logprobs"):
                piece.logprobs += map(_logprobs, found["content"])
            piece.finish_reason, piece.stop_reason = choice["finish_reason"], choice.get("stop_reason")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFrame(f"its frames are none of vLLM's token route ({type(error).__name__})") from None
    return piece


def _logprobs(entry: Mapping[str, Any]) -> Mapping[int, Logprob]:
    """The chosen token's, and those of the likeliest."""
    entries: Iterable[Mapping[str, Any]] = [*entry["top_logprobs"], entry]
    return {each["token_id"]: Logprob(each["logprob"], each.get("rank")) for each in entries}
