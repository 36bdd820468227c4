"""One attempt: a signed POST to an address that was checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from app.fetching.egress import EgressPolicy, Network
from app.fetching.errors import FetchError
from app.fetching.lazy import LazyFetcher
from app.fetching.resolving import Resolve
from app.protocol.text import shortened
from app.store.keys import SharedSealer
from app.store.sealing import BadSeal, SealedKind
from app.store.webhooks.deliveries import Claimed
from app.store.webhooks.endpoints import EndpointRow
from app.webhooks import policy
from app.webhooks.policy import Outcome
from app.webhooks.signing import headers_of
from config.version import VERSION

SECONDS = 15.0
"""How long an attempt may take, look-up and answer included."""
ANSWER_BYTES = 2048
"""Most bytes of an answer that are read and kept."""
LOOKUPS = 512
"""Threads for look-ups: twice the deliveries of a process, as one that hangs outlives its attempt. So none waits for
the names of another endpoint."""
HTTPS_PORT = 443


class Sender:
    """Sends to public addresses by HTTPS, and to the operator's `networks` on any port, by HTTP as well."""

    def __init__(self, networks: Sequence[Network], sealer: SharedSealer, resolve: Resolve | None = None) -> None:
        self._sealer = sealer
        egress = EgressPolicy(tuple(networks), frozenset({HTTPS_PORT}))
        self._fetcher = LazyFetcher(lambda *_: egress, ANSWER_BYTES, SECONDS, LOOKUPS, resolve)

    def close(self) -> None:
        """Waits for nothing."""
        self._fetcher.close()

    async def send(self, to: Claimed | EndpointRow, event_id: str, body: str, now: float) -> Outcome:
        """Makes one attempt. `now` is the time by the clock that signs, in epoch seconds. Raises StoreUnavailable."""
        sealer = await self._sealer.get(to.project)
        try:
            sealed = filter(None, (to.secret, to.old_secret))
            secrets = [sealer.unseal(SealedKind.WEBHOOK_SECRET, each) for each in sealed]
        except BadSeal:
            return Outcome(None, "The endpoint's secret cannot be read any more; rotate it.")
        signed = headers_of(event_id, int(now), body, secrets)
        headers = {**signed, "content-type": "application/json", "user-agent": f"Longhaul/{VERSION}"}
        try:
            async with asyncio.timeout(SECONDS):
                fetcher = await self._fetcher.get()
                answer = await fetcher.post(to.url, headers, body.encode())
        except TimeoutError:
            return Outcome(None, f"There was no answer within {SECONDS:.0f} s.")
        except FetchError as error:
            return Outcome(None, shortened(str(error), 300))
        shown = answer.body.decode(errors="replace").replace("\0", "\ufffd")
        wait = policy.retry_after(answer.headers.get("retry-after"), time.time())
        return Outcome(answer.status, None, shown, wait)
