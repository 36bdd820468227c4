"""What clients keep for us and must neither read nor forge: reasoning and summaries, sealed.

AES-SIV (RFC 5297): the same text gives the same seal, as replays need, and nothing has to be unique. The key is a
row of Postgres, so that every process of a deployment has the same one.
"""

from __future__ import annotations

import base64
import binascii
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY_BYTES = 64

_VERSION = "lh1_"


class Sealed(Enum):
    """What is sealed; one cannot be opened as the other."""

    REASONING = "reasoning"
    COMPACTION = "compaction"


class BadSeal(Exception):
    """It was not sealed here, or was changed."""


class Seal:
    """`key` has KEY_BYTES random bytes."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESSIV(key)

    def close(self, kind: Sealed, text: str) -> str:
        """A token of letters, digits, `-`, `_` and `=`."""
        # AES-SIV takes no empty text.
        sealed = self._cipher.encrypt(b"." + text.encode(), [kind.value.encode()])
        return _VERSION + base64.urlsafe_b64encode(sealed).decode()

    def open(self, kind: Sealed, token: str) -> str:
        """The text. Raises BadSeal."""
        if not token.startswith(_VERSION):
            raise BadSeal
        try:
            sealed = base64.b64decode(token.removeprefix(_VERSION), altchars=b"-_", validate=True)
            return self._cipher.decrypt(sealed, [kind.value.encode()])[1:].decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise BadSeal from None
