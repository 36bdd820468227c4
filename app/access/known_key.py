"""One API key as this process knows it, and the moment at which it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.access.caller import Caller, Scope
from app.store.tenants.api_keys import KeyRow

REVOKED = "This API key was revoked. Use another key of the project."
EXPIRED = "This API key has expired. Use another key of the project."
ARCHIVED = "This API key belongs to a project that is archived."
DELETED = "This API key does not exist any more."
_REFUSALS = {"revoked": REVOKED, "archived": ARCHIVED, "expired": EXPIRED}
"""State of a key -> its refusal."""


class KnownKey:
    """A key that was found in Postgres. `ended` is set once it works no longer, and `refusal` then says why."""

    def __init__(self, row: KeyRow) -> None:
        self.id = row.id
        self.caller = _caller(row)
        self.ended = asyncio.Event()
        self.refusal: str | None = None
        self.used_at: float | None = None
        """When it was used, by the monotonic clock. None: not since `take_use`."""
        self._seen_at = time.monotonic()
        self._open_requests = 0
        self._expiry: asyncio.TimerHandle | None = None
        self.update(row)

    def update(self, row: KeyRow) -> None:
        """Takes over what Postgres says now. A key that has ended stays so: one that works again gets a new object."""
        self.forget()
        self.caller = _caller(row)
        if row.state != "works":
            self.end(_REFUSALS[row.state])
        elif row.remaining_seconds is not None and not self.ended.is_set():
            self._expiry = asyncio.get_running_loop().call_later(row.remaining_seconds, self.end, EXPIRED)

    def end(self, refusal: str) -> None:
        """Ends the key: it is refused from now on, and its open requests end."""
        self.forget()
        if self.refusal is None:
            self.refusal = refusal
            self.ended.set()

    def forget(self) -> None:
        """Lets go of the timer: nobody refers to the key any longer, or another timer is due."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Counts a request of the key, from its head to the end of its answer."""
        self.used_at = self._seen_at = time.monotonic()
        self._open_requests += 1
        try:
            yield
        finally:
            self._open_requests -= 1

    def idle_seconds(self) -> float:
        """How long ago its last request began; 0 while one is open."""
        return 0.0 if self._open_requests else time.monotonic() - self._seen_at

    def take_use(self) -> float | None:
        """Returns how many seconds ago the key was used, if that is news."""
        used, self.used_at = self.used_at, None
        return None if used is None else time.monotonic() - used


def _caller(row: KeyRow) -> Caller:
    known = {scope.value: scope for scope in Scope}
    # A later version may know more scopes.
    return Caller(row.project, frozenset(known[name] for name in row.scopes if name in known), row.id)
