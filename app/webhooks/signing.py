"""Signatures of Standard Webhooks, as OpenAI's clients verify them. Pure."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable

PREFIX = "whsec_"
SECRET_BYTES = 32


def secret_of(key: bytes) -> str:
    """Returns a secret as clients get it: padded, standard base64, which both libraries read."""
    return PREFIX + b64encode(key).decode()


def hint_of(secret: str) -> str:
    """Returns what shows which secret it is."""
    return f"{PREFIX}...{secret[-4:]}"


def headers_of(event_id: str, timestamp: int, body: str, secrets: Iterable[str]) -> dict[str, str]:
    """Returns the headers of a delivery. It has a signature for each secret: a receiver needs one of them."""
    signed = f"{event_id}.{timestamp}.{body}".encode()
    keys = (b64decode(secret.removeprefix(PREFIX)) for secret in secrets)
    signatures = (b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
