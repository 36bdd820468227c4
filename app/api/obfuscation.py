"""Padding of deltas, so that an observer of encrypted traffic does not learn the length of each token.

The log has no padding: it is added on the way to a reader that asked for it, and costs the others nothing. The length
of the padding follows from the frame alone, so reading a stream again and again tells an observer nothing new.
"""

from __future__ import annotations

import secrets

from app.protocol.events import frames

BLOCK_BYTES = 64
"""From its text on, the length of a padded frame is a multiple of this. A larger block hides more and costs more."""

_DELTA = b".delta\n"
_TEXT = b'"delta":'
_END = b"}\n\n"
_FIELD = b',"obfuscation":"%b"' + _END


def obfuscated(encoded: bytes) -> bytes:
    """Returns the frames with a field `obfuscation` in each delta; other events stay as they are."""
    return b"".join(map(_padded, frames.split(encoded)))


def _padded(frame: bytes) -> bytes:
    if not frame.split(b"data: ", 1)[0].endswith(_DELTA):
        return frame
    # What comes before the text, such as ids and numbers, is no secret.
    secret = len(frame) - frame.index(_TEXT) + len(_FIELD % b"") - len(_END)
    room = -secret % BLOCK_BYTES
    # Random, so that compression on the way does not undo it.
    return frame.removesuffix(_END) + _FIELD % secrets.token_hex(BLOCK_BYTES // 2)[:room].encode()
