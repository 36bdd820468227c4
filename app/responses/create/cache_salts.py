"""Salts of the engine's prefix cache: without one, a caller could find out what others' prompts begin with.

The cache is shared by all requests with the same salt, and tells in time and in `cached_tokens` what was there before.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable

from app.store.tables import DEFAULT_PROJECT


class CacheSalts:
    """Makes salts that nobody outside can guess, so that no project can take another's."""

    def __init__(self, get_key: Callable[[], Awaitable[bytes]]) -> None:
        """`get_key` returns the deployment's key for salts (`app.store.keys.salt_key`)."""
        self._get_key = get_key

    async def salt(self, project: str, own: str | None) -> str | None:
        """Returns the salt of a request whose caller sent `own`; None: the cache of the default project, as it is.

        Raises StoreUnavailable.
        """
        if project == DEFAULT_PROJECT:
            return own
        # No id of a project has a NUL, so no two pairs make the same message.
        message = f"{project}\0{'' if own is None else own}".encode("utf-8", "surrogatepass")
        return base64.urlsafe_b64encode(hmac.digest(await self._get_key(), message, "sha256")).decode()
