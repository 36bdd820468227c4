"""A message of pub/sub: a chunk, or the news that a large one was committed.

Each message is signed with a key that lies in Postgres. Whoever can write to Redis, but not read Postgres, can neither
make up events nor change them: a reader of this process is shown only what a worker committed.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from hmac import compare_digest

from app.protocol.events.chunk import Chunk

MAX_FRAMES_BYTES = 64 * 1024
"""The events of a larger chunk are left out, and readers find them in the log. Redis cuts off a process, and so all of
its readers, once 32 MB wait for it: four events of 8 MB."""

_MAC_BYTES = 16
_HEADER = struct.Struct(">qqi?")
_LEFT_OUT = b""


class ForgedMessage(Exception):
    """No process of this deployment published the message, or not for this response."""


class Messages:
    """Packs and unpacks messages with one key of random bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def pack(self, chunk: Chunk) -> bytes:
        frames = chunk.frames if len(chunk.frames) <= MAX_FRAMES_BYTES else _LEFT_OUT
        signed = _HEADER.pack(chunk.first, chunk.last, chunk.attempt, chunk.final) + frames
        return self._mac(chunk.response_id, signed) + signed

    def unpack(self, response_id: str, message: bytes) -> Chunk | None:
        """Returns the chunk; None: it is large, and in the log. Raises ForgedMessage."""
        mac, signed = message[:_MAC_BYTES], message[_MAC_BYTES:]
        if not compare_digest(mac, self._mac(response_id, signed)):
            raise ForgedMessage
        first, last, attempt, final = _HEADER.unpack_from(signed)
        frames = signed[_HEADER.size :]
        return None if frames == _LEFT_OUT else Chunk(response_id, first, last, attempt, (), frames, final)

    def _mac(self, response_id: str, signed: bytes) -> bytes:
        mac = blake2b(response_id.encode(), key=self._key, digest_size=_MAC_BYTES)
        mac.update(b"\0")
        mac.update(signed)
        return mac.digest()
