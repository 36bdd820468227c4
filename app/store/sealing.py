"""What clients keep for us and must neither read nor forge, reasoning and summaries; and what lies in Postgres as no
reader of a table should see it, headers of tool servers: sealed.

AES-SIV (RFC 5297): the same text gives the same seal, as replays need, and nothing has to be unique. The key is a
row of Postgres, so that every process of a deployment has the same one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY_BYTES = 64

_VERSION = "lh1_"


class Sealed(Enum):
    """What is sealed; one cannot be opened as the other."""

    REASONING = "reasoning"
    COMPACTION = "compaction"
    HEADERS = "headers"


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


def close_headers(seal: Seal, headers: Mapping[str, str]) -> str:
    """A request's headers for a tool server, sealed."""
    return seal.close(Sealed.HEADERS, json.dumps(dict(headers)))


def open_headers(seal: Seal, token: str) -> dict[str, str]:
    """The headers that `close_headers` sealed. Raises BadSeal."""
    headers: dict[str, str] = json.loads(seal.open(Sealed.HEADERS, token))
    return headers
