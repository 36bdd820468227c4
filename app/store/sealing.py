"""Encryption of text that others keep for the server, or that the database must not show.

Clients keep sealed reasoning and compactions: they can neither read nor forge them. Headers for MCP servers,
and secrets of webhooks, are sealed in Postgres, so that a reader of the table does not see them.

The cipher is AES-SIV (RFC 5297). It is deterministic: the same text gives the same token, as replays need, and no
nonce has to be unique. The keys are rows of Postgres, so all processes of a deployment share them (keys.py). A token
begins with the number of its key, and is bound to its kind and its project. Tokens of the project `default` are
bound to the kind alone, as all were before there were projects.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from copy import copy
from enum import Enum
from types import MappingProxyType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from app.store.tables import DEFAULT_PROJECT

KEY_BYTES = 64

FIRST_KEY = 1

_TOKEN = re.compile(r"lh([1-9][0-9]{0,3})_(.*)", re.ASCII)


class SealedKind(Enum):
    """The contents of a token. A token of one kind cannot be unsealed as another."""

    REASONING = "reasoning"
    COMPACTION = "compaction"
    HEADERS = "headers"
    PROMPT = "prompt"
    """What a worker is to count the tokens of, while it waits in Redis."""
    WEBHOOK_SECRET = "webhook_secret"


class BadSeal(Exception):
    """The token was sealed with another key, as another kind or for another project, or it was changed."""


class Sealer:
    """Seals texts with one key of KEY_BYTES random bytes; unseals with it and with the `others`, by their numbers."""

    def __init__(self, key: bytes, number: int = FIRST_KEY, others: Mapping[int, bytes] = MappingProxyType({})) -> None:
        self._number = number
        self._ciphers = {each: AESSIV(value) for each, value in {**others, number: key}.items()}
        self._project: list[bytes] = []

    def of(self, project: str) -> Sealer:
        """Returns the sealer of a project, with the same keys."""
        sealer = copy(self)
        sealer._project = [] if project == DEFAULT_PROJECT else [project.encode()]
        return sealer

    def _bound_to(self, kind: SealedKind) -> list[bytes]:
        return [kind.value.encode(), *self._project]

    def seal(self, kind: SealedKind, text: str) -> str:
        """Returns a token of letters, digits, `-`, `_` and `=`."""
        # AES-SIV takes no empty text.
        encrypted = self._ciphers[self._number].encrypt(b"." + text.encode(), self._bound_to(kind))
        return f"lh{self._number}_{base64.urlsafe_b64encode(encrypted).decode()}"

    def unseal(self, kind: SealedKind, token: str) -> str:
        """Returns the text of a token. Raises BadSeal."""
        found = _TOKEN.fullmatch(token)
        cipher = None if found is None else self._ciphers.get(int(found[1]))
        if found is None or cipher is None:
            raise BadSeal
        try:
            encrypted = base64.b64decode(found[2], altchars=b"-_", validate=True)
            return cipher.decrypt(encrypted, self._bound_to(kind))[1:].decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise BadSeal from None


def seal_headers(sealer: Sealer, headers: Mapping[str, str]) -> str:
    """Returns a token of the headers that a request sends to an MCP server."""
    return sealer.seal(SealedKind.HEADERS, json.dumps(dict(headers)))


def unseal_headers(sealer: Sealer, token: str) -> dict[str, str]:
    """Returns the headers of a token of `seal_headers`. Raises BadSeal."""
    headers: dict[str, str] = json.loads(sealer.unseal(SealedKind.HEADERS, token))
    return headers
