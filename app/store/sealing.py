"""Encryption of text that others keep for the server, or that the database must not show.

Clients keep sealed reasoning and compactions: they can neither read nor forge them. Headers for MCP servers are sealed
in Postgres, so that a reader of the table does not see them.

The cipher is AES-SIV (RFC 5297). It is deterministic: the same text gives the same token, as replays need, and no
nonce has to be unique. The key is a row of Postgres, so all processes of a deployment share it.
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


class SealedKind(Enum):
    """What a token holds. A token of one kind cannot be unsealed as another."""

    REASONING = "reasoning"
    COMPACTION = "compaction"
    HEADERS = "headers"


class BadSeal(Exception):
    """The token was sealed with another key or as another kind, or it was changed."""


class Sealer:
    """Seals and unseals texts with one key of KEY_BYTES random bytes."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESSIV(key)

    def seal(self, kind: SealedKind, text: str) -> str:
        """Returns a token of letters, digits, `-`, `_` and `=`."""
        # AES-SIV takes no empty text.
        encrypted = self._cipher.encrypt(b"." + text.encode(), [kind.value.encode()])
        return _VERSION + base64.urlsafe_b64encode(encrypted).decode()

    def unseal(self, kind: SealedKind, token: str) -> str:
        """Returns the text of a token. Raises BadSeal."""
        if not token.startswith(_VERSION):
            raise BadSeal
        try:
            encrypted = base64.b64decode(token.removeprefix(_VERSION), altchars=b"-_", validate=True)
            return self._cipher.decrypt(encrypted, [kind.value.encode()])[1:].decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise BadSeal from None


def seal_headers(sealer: Sealer, headers: Mapping[str, str]) -> str:
    """Returns a token of the headers that a request sends to an MCP server."""
    return sealer.seal(SealedKind.HEADERS, json.dumps(dict(headers)))


def unseal_headers(sealer: Sealer, token: str) -> dict[str, str]:
    """Returns the headers of a token of `seal_headers`. Raises BadSeal."""
    headers: dict[str, str] = json.loads(sealer.unseal(SealedKind.HEADERS, token))
    return headers
