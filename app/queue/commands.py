"""Commands to workers that stop something: they are signed, so that REDIS_URL alone stops nothing.

Celery's remote control goes through Redis, and obeys whoever writes there. The key is that of the relayed events, from
Postgres (docs/internals/decisions/messages.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

import orjson

GetKey = Callable[[], Awaitable[bytes]]
"""Returns the key that signs: `app.store.keys.pubsub_key`. May raise."""

_PERSON = b"longhaul-command"
"""Sets these signatures apart from those of events, which have the same key."""
_MAC_BYTES = 16


class Command(StrEnum):
    """What a worker does for a signed message, by Celery's names."""

    REVOKE = "revoke"
    """Stop what runs under these ids. Their rows are final: a message that is sent again does nothing."""
    SHUTDOWN = "shutdown"
    """Drain and stop. No other process has the worker's name, so this message cannot stop a later one."""
    COUNT = "count"
    """Count the tokens of a prompt that was left in Redis. Who takes it from there first counts it, nobody else."""


TO_ONE = frozenset(Command) - {Command.REVOKE}
"""Commands that name one worker."""


class Forged(Exception):
    """No process of this deployment sent the command, or not this one, or not to this worker."""


def signed(
    key: bytes, command: Command, arguments: Mapping[str, Any], worker: str | None, nonce: str
) -> dict[str, Any]:
    """The arguments with a signature that names the worker (None: all), and that no other message has."""
    return {**arguments, "signature": [nonce, worker, _mac(key, command, arguments, worker, nonce)]}


def verify(key: bytes, command: Command, arguments: Mapping[str, Any], signature: Any, worker: str) -> None:
    """Checks a command that a worker gets. Raises Forged. Without a key, which is empty, nothing is genuine."""
    try:
        nonce, to, mac = signature
        is_genuine = bool(key) and compare_digest(mac, _mac(key, command, arguments, to, nonce))
    except (TypeError, ValueError):
        is_genuine = False
    if not is_genuine:
        raise Forged("it is not signed by a process of this deployment")
    if to not in ([worker] if command in TO_ONE else [worker, None]):
        raise Forged("it is for another worker")


def _mac(key: bytes, command: Command, arguments: Mapping[str, Any], worker: Any, nonce: Any) -> str:
    said = orjson.dumps([command.value, arguments, worker, nonce], option=orjson.OPT_SORT_KEYS)
    return blake2b(said, key=key, digest_size=_MAC_BYTES, person=_PERSON).hexdigest()
