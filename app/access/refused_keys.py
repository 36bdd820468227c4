"""How often keys were refused, for the log: one line a minute for each key and address."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from operator import itemgetter

from app.access.caller import ip_address_or_none
from app.access.secret import hash_of, is_well_formed

log = logging.getLogger("longhaul.access")

MINUTE_SECONDS = 60.0
MAX_PAIRS = 100
"""Pairs of a key and an address that have a line of their own; the others share one."""

NO_KEY = "no API key"
MALFORMED = "a text that is no API key"


def name_of(secret: str | None, key_id: str | None) -> str:
    """Returns what the log calls a key: never the key itself."""
    if key_id is not None:
        return key_id
    if secret is None:
        return NO_KEY
    return f"an unknown API key (SHA-256 {hash_of(secret).hex()[:12]})" if is_well_formed(secret) else MALFORMED


class RefusedKeys:
    """Counts refused requests, and logs them a minute after the first one."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Counter[int]] = {}
        """Key and address -> refusals."""
        self._others: Counter[int] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def count(self, name: str, address: str | None, status: int) -> None:
        """Counts a refusal of the key that the log calls `name`."""
        pair = name, ip_address_or_none(address) or "an unknown address"
        if pair in self._counts or len(self._counts) < MAX_PAIRS:
            self._counts.setdefault(pair, Counter())[status] += 1
        else:
            self._others[status] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MINUTE_SECONDS, self.write)

    def write(self) -> None:
        """Logs what was counted, and counts anew."""
        for (name, address), counts in sorted(self._counts.items(), key=itemgetter(0)):
            log.warning("refused within a minute: %s from %s, %s", name, address, _shown(counts))
        if self._others:
            log.warning("refused within a minute: other keys and addresses, %s", _shown(self._others))
        self._counts.clear()
        self._others.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _shown(counts: dict[int, int]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in sorted(counts.items()))
