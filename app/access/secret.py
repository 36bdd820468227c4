"""The form of an API key: `sk-lh-`, 32 random bytes in base62, and a CRC32 of both.

The checksum tells a typing error, or a guess, from a key without asking anybody, and lets scanners of source code
recognise keys that were published by accident. It is no secret: what protects a key is that nobody guesses 256 bits.
"""

from __future__ import annotations

import secrets
import zlib
from hashlib import sha256

PREFIX = "sk-lh-"
RANDOM_BYTES = 32

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARS = 43
"""62 ** 43 is more than 256 ** 32."""
_CHECKSUM_CHARS = 6
LENGTH = len(PREFIX) + _RANDOM_CHARS + _CHECKSUM_CHARS
_SHOWN_CHARS = 4


def new_secret() -> str:
    """Returns a new API key."""
    body = PREFIX + _base62(secrets.randbits(8 * RANDOM_BYTES), _RANDOM_CHARS)
    return body + _checksum(body)


def is_well_formed(secret: str) -> bool:
    """Whether the text may be an API key of some Longhaul."""
    body, checksum = secret[:-_CHECKSUM_CHARS], secret[-_CHECKSUM_CHARS:]
    return len(secret) == LENGTH and secret.startswith(PREFIX) and secret.isascii() and checksum == _checksum(body)


def hash_of(secret: str) -> bytes:
    """Returns what the store keeps of a key. A slow hash is for passwords: nobody can try 2 ** 256 keys."""
    return sha256(secret.encode()).digest()


def shown(secret: str) -> str:
    """Returns the beginning and the end, by which people recognise a key. 208 bits stay unknown."""
    return f"{secret[: len(PREFIX) + _SHOWN_CHARS]}...{secret[-_SHOWN_CHARS:]}"


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_CHARS)


def _base62(number: int, chars: int) -> str:
    digits = []
    for _ in range(chars):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
