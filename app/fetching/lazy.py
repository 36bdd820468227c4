"""A fetcher that is made at its first use, and whose look-ups keep nobody else's waiting."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from app.fetching.resolving import Resolve, by_dns

if TYPE_CHECKING:
    from app.fetching.fetcher import Egress, Fetcher


class LazyFetcher:
    """A process that fetches nothing starts without an HTTP client. Look-ups have `threads` of their own: one that
    hangs keeps no connection to Postgres or Redis from being opened. Arguments as those of a Fetcher."""

    def __init__(
        self, egress: Egress, max_bytes: int, seconds: float, threads: int, resolve: Resolve | None = None
    ) -> None:
        self._egress = egress
        self._limits = (max_bytes, seconds)
        self._threads = ThreadPoolExecutor(threads, "lookups")
        self._resolve = resolve or partial(by_dns, threads=self._threads)
        self._fetcher: Fetcher | None = None

    def close(self) -> None:
        """Waits for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get(self) -> Fetcher:
        if self._fetcher is None:
            self._fetcher = await asyncio.to_thread(self._make)
        return self._fetcher

    def _make(self) -> Fetcher:
        from app.fetching.fetcher import Fetcher

        return Fetcher(self._egress, *self._limits, self._resolve)
