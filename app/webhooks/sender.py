"""One attempt: a signed POST to an address that was checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from app.fetching.egress import EgressPolicy, Network
from app.fetching.errors import FetchError
from app.fetching.resolving import OwnThreads, Resolve
from app.protocol.text import shortened
from app.store.keys import SharedSealer
from app.store.sealing import BadSeal, SealedKind
from app.webhooks import policy
from app.webhooks.policy import Outcome
from app.webhooks.signing import headers_of
from config.version import VERSION

if TYPE_CHECKING:
    from app.fetching.fetcher import Fetcher

SECONDS = 15.0
"""How long an attempt may take, look-up and answer included."""
ANSWER_BYTES = 2048
"""Of an answer that are read and kept."""
LOOKUPS = 512
"""Threads for look-ups: twice the deliveries of a process, as one that hangs outlives its attempt. So none waits for
the names of another endpoint."""
HTTPS_PORT = 443


class Target(Protocol):
    """Where to send, and what signs, sealed: an endpoint, or a delivery to one."""

    @property
    def project(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def secret(self) -> str: ...
    @property
    def old_secret(self) -> str | None: ...


class Sender:
    """Sends to public addresses by HTTPS, and to the operator's `networks` on any port, by HTTP as well."""

    def __init__(self, networks: Sequence[Network], sealer: SharedSealer, resolve: Resolve | None = None) -> None:
        self._sealer = sealer
        self._egress = EgressPolicy(tuple(networks), frozenset({HTTPS_PORT}))
        self._threads = OwnThreads(LOOKUPS)
        self._resolve = resolve or self._threads
        self._fetcher: Fetcher | None = None

    def close(self) -> None:
        """Waits for nothing."""
        self._threads.close()

    async def send(self, to: Target, event_id: str, body: str, now: float) -> Outcome:
        """Makes one attempt. `now` is the time by the clock that signs, in epoch seconds. Raises StoreUnavailable."""
        sealer = await self._sealer.get(to.project)
        try:
            secrets = [
                sealer.unseal(SealedKind.WEBHOOK_SECRET, each)
                for each in (to.secret, to.old_secret)
                if each is not None
            ]
        except BadSeal:
            return Outcome(None, "The endpoint's secret cannot be read any more; rotate it.")
        signed = headers_of(event_id, int(now), body, secrets)
        headers = {**signed, "content-type": "application/json", "user-agent": f"Longhaul/{VERSION}"}
        try:
            async with asyncio.timeout(SECONDS):
                fetcher = await self._made()
                answer = await fetcher.post(to.url, headers, body.encode())
        except TimeoutError:
            return Outcome(None, f"There was no answer within {SECONDS:.0f} s.")
        except FetchError as error:
            return Outcome(None, shortened(str(error), 300))
        shown = answer.body.decode(errors="replace").replace("\0", "\ufffd")
        wait = policy.retry_after(answer.headers.get("retry-after"), time.time())
        return Outcome(answer.status, None, shown, wait)

    async def _made(self) -> Fetcher:
        """The fetcher. A process that sends nothing starts without an HTTP client."""
        if self._fetcher is None:
            self._fetcher = await asyncio.to_thread(self._make)
        return self._fetcher

    def _make(self) -> Fetcher:
        from app.fetching.fetcher import Fetcher

        return Fetcher(lambda *_: self._egress, ANSWER_BYTES, SECONDS, self._resolve)
